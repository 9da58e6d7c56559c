"""Small libraries that stand in for the vendors', compiled where there is a C compiler."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def build_stand_in(name: str, folder: Path, *flags: str) -> Path:
    """The library of the C file `name` beside this one, in `folder`."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for the stand-in")
    path = folder / f"lib{name}.so"
    command = [compiler, "-shared", "-fPIC", *flags, str(HERE / f"{name}.c"), "-o", str(path)]
    subprocess.run([*command, "-lpthread"], check=True)
    return path
