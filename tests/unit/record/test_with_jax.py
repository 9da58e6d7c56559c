"""Tests that import JAX, in processes of their own.

From then on JAX warns of every fork of its process, and it may hang: other tests fork.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.main
FOLDER = Path(__file__).parent / "with_jax"
if (os.environ.get("CI") != "true" or sys.version_info < (3, 11)) and not find_spec("jax"):
    pytest.skip("needs jax", allow_module_level=True)


# It counts all arrays that there are, on more devices than one.
ALONE = "measured_steps.py"
TOGETHER = sorted(path.name for path in FOLDER.glob("*.py") if path.name != ALONE)


@pytest.mark.parametrize("files", [[ALONE], TOGETHER], ids=["alone", "together"])
def test_files(files: list[str]) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += [str(FOLDER / file) for file in files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
