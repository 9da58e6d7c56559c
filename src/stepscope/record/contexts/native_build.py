"""Builds the collector's C++ against the Python and PyTorch that run, once, and loads it."""

import hashlib
import importlib.machinery
import importlib.util
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from stepscope.record.capture_file import locked

SOURCES = Path(__file__).parent.parent / "native"
FOLDER_VARIABLE = "STEPSCOPE_BUILDS"
FLAGS_VARIABLE = "STEPSCOPE_BUILD_FLAGS"  # also for the linker, such as -fsanitize=address
_NAME = "_contexts"
_LONGEST_BUILD_S = 600.0  # chosen: a minute on two cores that do nothing else
_OURS = re.compile(r"[0-9a-f]{16}")
_loaded: dict[str, ModuleType] = {}


class BuildError(Exception):
    """The collector cannot be built here; the message says why."""


@dataclass(frozen=True)
class Recipe:
    """All that the result depends on."""

    compiler: str
    compile_flags: tuple[str, ...]
    link_flags: tuple[str, ...]
    files: tuple[Path, ...]
    versions: str

    @property
    def key(self) -> str:
        parts = self.compiler, self.compile_flags, self.link_flags, self.versions
        digest = hashlib.sha256(repr(parts).encode())
        for file in sorted(SOURCES.iterdir()):
            if file.suffix in (".h", ".cpp"):
                digest.update(file.read_bytes())
        return digest.hexdigest()[:16]


def load(torch: Any = None, say: Any = lambda line: None) -> ModuleType:
    """The collector, built first where that has not been done before; `say` gets a line then.

    It follows the PyTorch `torch`; None for a collector that other frameworks feed. Raises BuildError
    if there is no compiler, no folder to write to, or the compiler refuses.
    """
    recipe = make_recipe(torch)
    if recipe.key not in _loaded:
        _loaded[recipe.key] = _import(_built(recipe, say))
    return _loaded[recipe.key]


def make_recipe(torch: Any = None) -> Recipe:
    if sys.platform != "linux":
        raise BuildError(f"the native collector needs Linux, this is {sys.platform}")
    if sys.implementation.name != "cpython":
        raise BuildError(f"the native collector needs CPython, this is {sys.implementation.name}")
    include = sysconfig.get_paths()["include"]
    if not Path(include, "Python.h").is_file():
        raise BuildError(f"no Python.h in {include}; install Python's headers (python3-dev)")
    flags = ["-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", f"-I{include}"]
    link = ["-shared", "-ldl", "-lpthread", "-lrt"]
    for command in (flags, link):
        command += shlex.split(os.environ.get(FLAGS_VARIABLE, ""))
    files = sorted(SOURCES.glob("*.cpp"))
    if torch is None:
        files.remove(SOURCES / "pytorch.cpp")
    else:
        home = Path(torch.__file__).parent
        abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
        # As PyTorch is compiled: its classes have further members without NDEBUG.
        flags += ["-DSTEPSCOPE_PYTORCH", "-DNDEBUG", f"-D_GLIBCXX_USE_CXX11_ABI={abi}"]
        flags += [f"-isystem{home / 'include'}"]
        link += [f"-L{home / 'lib'}", "-ltorch_cpu", "-lc10"]
    versions = f"{sys.version} {getattr(torch, '__version__', None)}"
    return Recipe(_compiler(), tuple(flags), tuple(link), tuple(files), versions)


def folder() -> Path:
    if chosen := os.environ.get(FOLDER_VARIABLE):
        return Path(chosen)
    cache = os.environ.get("STEPSCOPE_CACHE", "")
    if cache and cache.lower() != "off":
        return Path(cache, "native")
    import platformdirs

    return Path(platformdirs.user_cache_dir("stepscope"), "native")


def kept() -> list[Path]:
    here = folder()
    if not here.is_dir():
        return []
    return sorted(path for path in here.iterdir() if _OURS.fullmatch(path.name))


def _compiler() -> str:
    for name in (os.environ.get("CXX", "").split(" ")[0], "g++", "c++", "clang++"):
        if name and (path := shutil.which(name)):
            return path
    raise BuildError("no C++ compiler found (g++, c++ or clang++ on the PATH, or $CXX)")


def _built(recipe: Recipe, say: Any) -> Path:
    home = folder()
    result = home / recipe.key / (_NAME + importlib.machinery.EXTENSION_SUFFIXES[0])
    if result.is_file():
        return result
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        check_trusted(home)
        with locked(home, _LONGEST_BUILD_S):  # of two processes that need it, one builds
            if not result.is_file():
                say("building the native collector for this version, once (seconds)")
                _build(recipe, result)
    except OSError as error:
        raise BuildError(f"cannot build in {home}: {error}; set {FOLDER_VARIABLE}") from error
    return result


def _build(recipe: Recipe, result: Path) -> None:
    here = result.parent.with_suffix(".partial")
    shutil.rmtree(here, ignore_errors=True)  # of a build that was killed
    here.mkdir(mode=0o700)
    try:
        objects = [here / f"{file.stem}.o" for file in recipe.files]
        _execute(
            [recipe.compiler, *recipe.compile_flags, "-c", str(file), "-o", str(target)]
            for file, target in zip(recipe.files, objects, strict=True)
        )
        built = here / result.name
        _execute([[recipe.compiler, *map(str, objects), *recipe.link_flags, "-o", str(built)]])
        result.parent.mkdir(exist_ok=True, mode=0o755)
        built.chmod(0o755)
        built.replace(result)
    finally:
        shutil.rmtree(here, ignore_errors=True)


def _execute(commands: Iterable[Sequence[str]]) -> None:
    """Run commands, as many at a time as there are processors; no thread is started for it."""
    waiting = list(commands)
    running: list[subprocess.Popen[str]] = []
    try:
        while waiting or running:
            while waiting and len(running) < (os.cpu_count() or 1):
                running.append(subprocess.Popen(waiting.pop(0), stderr=subprocess.PIPE, text=True))
            _check_outcome(running.pop(0))
    finally:
        for process in running:
            process.kill()
            process.communicate()


def _check_outcome(process: subprocess.Popen[str]) -> None:
    _, errors = process.communicate()
    if process.returncode:
        lines = [line for line in errors.splitlines() if "error" in line] or [errors]
        raise BuildError(f"the compiler failed: {lines[0].strip()}")


def check_trusted(path: Path) -> None:
    """Refuse what somebody else could have put there: it would run as this user."""
    status = path.stat()
    what = None
    if status.st_uid not in (os.getuid(), 0):
        what = f"belongs to another user ({status.st_uid})"
    elif status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        what = "can be written to by others"
    if what:
        raise BuildError(
            f"{path} {what}, so no collector is loaded from it; run `chmod go-w` on it, or choose "
            f"another folder with {FOLDER_VARIABLE}"
        )


def _check_parents(path: Path) -> None:
    """Refuse a folder that somebody else could replace as a whole."""
    for parent in path.absolute().parents:
        mode = parent.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise BuildError(
                f"{parent} can be written to by everybody, so no collector is loaded from {path}; "
                f"choose another folder with {FOLDER_VARIABLE}"
            )


def _import(path: Path) -> ModuleType:
    _check_parents(path.parent.parent)
    for part in (path.parent.parent, path.parent, path):
        check_trusted(part)
    spec = importlib.util.spec_from_file_location(_NAME, path)
    assert spec
    assert spec.loader
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        raise BuildError(f"cannot load {path}: {error}; delete it to build it again") from error
    return module
