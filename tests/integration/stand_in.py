"""Small libraries that stand in for the vendors', compiled where there is a C compiler."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def build_stand_in(name: str, folder: Path, *flags: str) -> Path:
    """The library of the C file `name` beside this one, in `folder`."""
    return compile_library(name, (HERE / f"{name}.c").read_text(), folder, *flags, f"-I{HERE}")


def compile_library(name: str, source: str, folder: Path, *flags: str) -> Path:
    """The library `name` of a source in C, in `folder`."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for the stand-in")
    path = folder / f"lib{name}.so"
    command = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-x", "none", "-o", str(path), *flags]
    subprocess.run([*command, "-lpthread"], input=source, text=True, check=True, cwd=folder)
    return path
