"""Tests that import JAX, each file in a process of its own.

From then on JAX warns of every fork of its process, and it may hang: other tests fork.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "with_jax"
if (os.environ.get("CI") != "true" or sys.version_info < (3, 11)) and not find_spec("jax"):
    pytest.skip("needs jax", allow_module_level=True)


@pytest.mark.parametrize("file", sorted(path.name for path in FOLDER.glob("*.py")))
def test_file(file: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(FOLDER / file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
