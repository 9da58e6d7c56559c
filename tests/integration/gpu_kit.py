"""The kit that measures on a GPU, started as its user does, where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
QUICK = ("--device", "cpu", "--quick")


def kit(*options: str | Path, module: str = "benchmarks.gpu") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *map(str, options)]
    return subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
