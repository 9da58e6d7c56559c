"""Downloads, as wheels, what stepscope needs on a machine that reaches no network.

    python -m benchmarks.gpu.prepare_wheels [--python 3.12] [--there NAME …]

Run it where there is a network; it fills `benchmarks/gpu/wheels/`, which git ignores, and notes
there which commit the wheels travel with. `benchmarks/gpu/sitting.py` installs them on the other
machine. Recording needs none of them, only PyTorch and click;
collecting contexts also platformdirs.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import tomllib
from benchmarks.gpu.commit import note_commit
from benchmarks.gpu.places import ROOT, SITE, WHEELS
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# What an environment for PyTorch usually holds already.
_THERE = ("numpy", "pyarrow", "click", "rich", "pygments", "markdown-it-py", "mdurl", "typing-extensions")
# For `stepscope query` alone, and larger than all others together.
_LEFT_OUT = ("duckdb",)
_PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014")


def missing(there: set[str], python: str) -> list[str]:
    """What stepscope needs, and what that needs, without what is there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    waiting, found = list(map(Requirement, project["dependencies"])), {}
    while waiting:
        needed = waiting.pop()
        name = canonicalize_name(needed.name)
        if name in there | found.keys() or not applies(needed, python):
            continue
        found[name] = f"{name}{needed.specifier}"
        waiting += map(Requirement, requires(name) or ())
    return sorted(found.values())


def applies(needed: Requirement, python: str) -> bool:
    """Whether it is needed on the other machine."""
    other = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "os_name": "posix",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
        "extra": "",
    }
    return needed.marker is None or needed.marker.evaluate(other)


def download_command(packages: list[str], python: str, folder: Path) -> list[str]:
    """pip, asked for wheels of another Python and of Linux on x86-64."""
    platforms = [f"--platform={name}_x86_64" for name in _PLATFORMS]
    return [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--implementation=cp",
        f"--python-version={python}",
        *platforms,
        f"--dest={folder}",
        *packages,
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default="3.12", help="of the other machine")
    parser.add_argument("--there", action="append", help="a package that is there (repeatable)")
    args = parser.parse_args()
    there = {canonicalize_name(name) for name in args.there or _THERE}
    packages = missing(there | set(_LEFT_OUT), args.python)
    WHEELS.mkdir(exist_ok=True)
    shutil.rmtree(SITE, ignore_errors=True)
    for old in WHEELS.glob("*.whl"):  # two versions of one package cannot be installed together
        old.unlink()
    code = subprocess.run(download_command(packages, args.python, WHEELS)).returncode
    if code == 0:
        note_commit()
        sizes = [wheel.stat().st_size for wheel in WHEELS.glob("*.whl")]
        print(f"{len(sizes)} wheels, {sum(sizes) / 2**20:.0f} MiB, in {WHEELS}")
    return code


if __name__ == "__main__":
    sys.exit(main())
