"""Downloads, as wheels, what stepscope needs on a machine that reaches no network.

    python -m benchmarks.gpu.prepare_wheels [--python 3.12] [--there numpy --there pyarrow …]

Run it where there is a network; it fills `benchmarks/gpu/wheels/`, which git ignores. On the other
machine, from the same checkout:

    wheels=$PWD/benchmarks/gpu/wheels
    python -m pip install --no-index --no-deps --target $wheels/site $wheels/*.whl
    export PYTHONPATH=$wheels/site:$PWD/src

Recording needs none of them, only PyTorch and click.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import tomllib
from packaging.requirements import Requirement

FOLDER = Path(__file__).parent / "wheels"
_PROJECT = Path(__file__).parents[2] / "pyproject.toml"
# What an environment for PyTorch usually holds already.
_THERE = (
    "numpy", "pyarrow", "numba", "llvmlite", "click", "rich", "pygments", "markdown-it-py", "mdurl",
)  # fmt: skip
_PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014")


def missing(there: set[str]) -> list[str]:
    """What stepscope needs, and what that needs, without what is there."""
    project = tomllib.loads(_PROJECT.read_text())["project"]
    waiting, found = list(map(Requirement, project["dependencies"])), {}
    while waiting:
        needed = waiting.pop()
        if needed.name.lower() in there | found.keys() or not _applies(needed):
            continue
        found[needed.name.lower()] = str(needed)
        waiting += map(Requirement, requires(needed.name) or ())
    return sorted(found.values())


def _applies(needed: Requirement) -> bool:
    return needed.marker is None or needed.marker.evaluate({"extra": ""})


def download_command(packages: list[str], python: str, folder: Path) -> list[str]:
    """pip, asked for wheels of another Python and of Linux on x86-64."""
    platforms = [f"--platform={name}_x86_64" for name in _PLATFORMS]
    return [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:",
        "--implementation=cp", f"--python-version={python}", *platforms,
        f"--dest={folder}", *packages,
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default="3.12", help="of the other machine")
    parser.add_argument("--there", action="append", help="a package that is there (repeatable)")
    args = parser.parse_args()
    packages = missing(set(args.there or _THERE))
    for old in FOLDER.glob("*.whl"):  # two versions of one package cannot be installed together
        old.unlink()
    return subprocess.run(download_command(packages, args.python, FOLDER)).returncode


if __name__ == "__main__":
    sys.exit(main())
