"""Builds the collector's C++ against the Python and PyTorch that run, once, and loads it."""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

SOURCES = Path(__file__).parent.parent / "native"
FOLDER_VARIABLE = "STEPSCOPE_BUILDS"
_NAME = "_contexts"
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
        """Names the result."""
        parts = self.compiler, self.compile_flags, self.link_flags, self.versions
        digest = hashlib.sha256(repr(parts).encode())
        for file in sorted(SOURCES.iterdir()):
            if file.suffix in (".h", ".cpp"):
                digest.update(file.read_bytes())
        return digest.hexdigest()[:16]


def load(torch: Any = None, say: Any = lambda line: None) -> ModuleType:
    """The collector, built first where that has not been done before.

    Args:
        torch: the PyTorch to follow; None for a collector that other frameworks feed.
        say: called with a line before a build that takes a while.

    Raises:
        BuildError: there is no compiler, no folder to write to, or the compiler refuses.
    """
    recipe = make_recipe(torch)
    if recipe.key not in _loaded:
        _loaded[recipe.key] = _import(_built(recipe, say))
    return _loaded[recipe.key]


def make_recipe(torch: Any = None) -> Recipe:
    """How to build for this Python and, where given, this PyTorch."""
    if sys.platform != "linux":
        raise BuildError(f"the native collector is for Linux, this is {sys.platform}")
    if sys.implementation.name != "cpython":
        raise BuildError(f"the native collector is for CPython, this is {sys.implementation.name}")
    include = sysconfig.get_paths()["include"]
    if not Path(include, "Python.h").is_file():
        raise BuildError(f"no Python.h in {include}; install Python's headers (python3-dev)")
    flags = ["-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", f"-I{include}"]
    link = ["-shared", "-ldl", "-lpthread", "-lrt"]
    files = sorted(SOURCES.glob("*.cpp"))
    if torch is None:
        files.remove(SOURCES / "pytorch.cpp")
    else:
        home = Path(torch.__file__).parent
        abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
        flags += ["-DSTEPSCOPE_PYTORCH", f"-D_GLIBCXX_USE_CXX11_ABI={abi}"]
        flags += [f"-isystem{home / 'include'}"]
        link += [f"-L{home / 'lib'}", "-ltorch_cpu", "-lc10"]
    versions = f"{sys.version} {getattr(torch, '__version__', None)}"
    return Recipe(_compiler(), tuple(flags), tuple(link), tuple(files), versions)


def folder() -> Path:
    """Where built collectors are kept."""
    if chosen := os.environ.get(FOLDER_VARIABLE):
        return Path(chosen)
    cache = os.environ.get("STEPSCOPE_CACHE", "")
    if cache and cache.lower() != "off":
        return Path(cache, "native")
    import platformdirs

    return Path(platformdirs.user_cache_dir("stepscope"), "native")


def kept() -> list[Path]:
    """The folder of each collector that was built."""
    here = folder()
    if not here.is_dir():
        return []
    return sorted(path for path in here.iterdir() if _OURS.fullmatch(path.name))


def _compiler() -> str:
    for name in (os.environ.get("CXX", "").split(" ")[0], "g++", "c++", "clang++"):
        if name and (found := shutil.which(name)):
            return found
    raise BuildError("no C++ compiler found (g++, c++ or clang++ on the PATH, or $CXX)")


def _built(recipe: Recipe, say: Any) -> Path:
    home = folder()
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    result = home / recipe.key / (_NAME + suffix)
    if result.is_file():
        return result
    try:
        home.mkdir(parents=True, exist_ok=True)
        with _locked(home / f"{recipe.key}.lock"):
            if not result.is_file():
                say("building the collector for this Python and PyTorch, once; a few seconds")
                _build(recipe, result)
    except OSError as error:
        raise BuildError(f"cannot build in {home}: {error}; set {FOLDER_VARIABLE}") from error
    return result


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Two processes that need the same collector: one builds, the other waits."""
    import fcntl

    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(recipe: Recipe, result: Path) -> None:
    with tempfile.TemporaryDirectory(dir=result.parent.parent) as scratch:
        here = Path(scratch)
        objects = [here / f"{file.stem}.o" for file in recipe.files]
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            commands = [
                [recipe.compiler, *recipe.compile_flags, "-c", str(file), "-o", str(target)]
                for file, target in zip(recipe.files, objects, strict=True)
            ]
            list(pool.map(_execute, commands))
        built = here / result.name
        _execute([recipe.compiler, *map(str, objects), *recipe.link_flags, "-o", str(built)])
        result.parent.mkdir(exist_ok=True)
        built.replace(result)


def _execute(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or [done.stderr]
        raise BuildError(f"{command[0]} failed: {lines[0].strip()}")


def _import(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(_NAME, path)
    assert spec
    assert spec.loader
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        raise BuildError(f"cannot load {path}: {error}; delete it to build it anew") from error
    return module
