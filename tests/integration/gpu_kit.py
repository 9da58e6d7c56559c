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


# The kit, but that each part is a fork of one process: PyTorch is imported once, not a dozen times.
_IN_FORKS = """
import os, sys
from benchmarks.gpu import __main__ as whole
os.environ.update(whole.environment())
import torch._dynamo, torch.profiler  # else each part would
from benchmarks.gpu import part

def in_fork(command, timeout_s):
    sys.stdout.flush()
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    sys.argv = command[2:]
    sys.exit(part.main())

whole.in_process = in_fork
sys.exit(whole.main())
"""


def kit_in_forks(*options: str | Path) -> subprocess.CompletedProcess[str]:
    """All parts as the kit takes them; how it starts their processes is tested part by part."""
    command = [sys.executable, "-c", _IN_FORKS, *map(str, options)]
    return subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
