"""Programs that replace clocks, functions of Python and system calls: a capture is written all the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

TRAIN = """
import torch
model = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(8, 16)).sum().backward()
        optimizer.step()
"""
FROZEN = """
import time
time.localtime = lambda *moment: time.struct_time((1970, 1, 1, 0, 0, 0, 3, 1, 0))
time.time = time.monotonic = time.perf_counter = lambda: 0.0
time.time_ns = time.perf_counter_ns = time.thread_time_ns = time.process_time_ns = lambda: 0
"""
WATCHED = """
import time
def watched(*arguments):
    raise SystemExit("called by somebody else")
for name in ("time_ns", "perf_counter_ns", "thread_time_ns", "process_time_ns", "sleep"):
    setattr(time, name, watched)
"""
MOCKED = """
import builtins, io, json, os
def mocked(*arguments, **options):
    raise ValueError("mocked")
def mock():
    builtins.open = builtins.max = builtins.filter = builtins.print = mocked
    os.getpid = os.open = os.stat = os.replace = os.path.join = os.path.realpath = mocked
    io.open = json.dumps = mocked
import atexit
atexit.register(os._exit, 0)  # torch's own exit functions need these
"""
# As gevent does, whose loop a script that trains never enters.
CLOSED_LATER = """
import os
closed = []
os.close = closed.append
"""


def run(tmp_path: Path, script: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "script.py").write_text(script)
    return subprocess.run(
        [sys.executable, "-m", "stepscope", "run", "script.py"],
        cwd=tmp_path,
        check=False,
        timeout=120,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    "script",
    [
        FROZEN + TRAIN + "train(14)\n",
        TRAIN + WATCHED + "train(14)\n",
        TRAIN + MOCKED + "train(6)\nmock()\n",
        CLOSED_LATER + TRAIN + "train(14)\n",
    ],
    ids=["a clock before 1980", "clocks that tell", "functions of Python", "files that are closed later"],
)
def test_a_capture_is_written(script: str, tmp_path: Path) -> None:
    done = run(tmp_path, script)
    assert (done.returncode, "wrote script.stepscope" in done.stderr) == (0, True), done.stderr
    with zipfile.ZipFile(tmp_path / "script.stepscope") as archive:
        manifest = json.loads(archive.read("manifest.json"))
    assert manifest["steps_recorded"]
    assert manifest["created_unix_ns"] > 0


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs another user to become")
def test_another_user_is_told_which_steps_are_lost(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    done = run(tmp_path, TRAIN + "train(3)\nimport os\nos.setuid(65534)\ntrain(11)\n")
    file = tmp_path / "script.stepscope"
    refused = f"stepscope: cannot write {file}: Permission denied; lost: steps 5 to 7"
    assert (done.returncode, done.stderr.splitlines()) == (0, [refused])
    assert not file.exists()
