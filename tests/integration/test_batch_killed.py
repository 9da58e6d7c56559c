"""`stepscope batch` that is killed takes its measuring processes with it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks")

SCRIPT = """
import os, time
{first}
import torch
batch_size = 8
open({started!r}, "a").write(f"{{os.getpid()}}\\n")
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1000):
    model(torch.ones(batch_size, 8)).sum().backward()
    optimizer.step()
    time.sleep(10)
"""
PATIENCE_S = 60  # less than a run without results may take


@pytest.mark.parametrize("first", ["", 'os.environ["OMP_NUM_THREADS"] = "1"'])
def test_no_measuring_process_is_left(first: str, tmp_path: Path) -> None:
    started = tmp_path.parent / f"{tmp_path.name}-started"
    (tmp_path / "train.py").write_text(SCRIPT.format(first=first, started=str(started)))
    command = [sys.executable, "-m", "stepscope", "batch", "--in-place", "--at", "8", "train.py"]
    with subprocess.Popen(command, cwd=tmp_path) as process:
        wait_until(started.exists)
        process.kill()
    wait_until(lambda: started.read_text().endswith("\n"))
    wait_until(lambda: not any(map(is_running, started.read_text().split())))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_running(process: str) -> bool:
    """Whether it exists and has not ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
