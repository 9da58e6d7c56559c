"""The kit that measures on a GPU, started as its user does, where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FORKED = Path(__file__).with_name("forked.py")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
QUICK = ("--device", "cpu", "--quick")


def kit(*options: str | Path, module: str = "benchmarks.gpu") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *map(str, options)]
    return subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)


def kit_in_forks(out: Path) -> subprocess.CompletedProcess[str]:
    """All parts as the kit takes them, in forks of it: PyTorch is imported once, not 20 times.

    How their processes start is tested part by part. JAX compiles once for all of its processes.
    """
    command = [sys.executable, FORKED, "-m", "benchmarks.gpu", *QUICK, "--out", out]
    compiled = {
        "JAX_COMPILATION_CACHE_DIR": str(out.parent / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    environment = {**ENVIRONMENT, **compiled, "KINETO_LOG_LEVEL": "99"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
