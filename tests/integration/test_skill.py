"""The skill for assistants: every command in it runs as written, in forks: PyTorch is imported once."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from warm_python import run_stepscope

from stepscope.faces.terminal.commands import stepscope

SCRIPT = """\
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
for step in range(12):
    optimizer.zero_grad()
    model(torch.randn(16, 32)).sum().backward()
    optimizer.step()
"""


def test_every_command_runs_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / ".cache"))
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "job").mkdir()
    for rank in (0, 1):
        (tmp_path / "job" / f"rank{rank}.json").write_text(json.dumps(_steps(rank)))
    commands = re.findall(
        r"^\$ (.*)$", CliRunner().invoke(stepscope, ["mcp", "--skill"]).output, re.MULTILINE
    )
    assert len(commands) == 15
    for command in commands:
        name, *words = shlex.split(command)
        assert name == "stepscope"
        done = run_stepscope(words, tmp_path)
        assert done.returncode == 0, (command, done.stderr)


def _steps(rank: int) -> dict[str, object]:
    """Two steps of 1 ms."""
    events = [
        {"ph": "X", "pid": 1, "tid": 1, "ts": 1000 * step, "dur": length, "name": name, "cat": kind}
        for step in (0, 1)
        for length, name, kind in (
            (1000, f"ProfilerStep#{step}", "user_annotation"),
            (800, "aten::mm", "cpu_op"),
        )
    ]
    return {"traceEvents": events, "distributedInfo": {"rank": rank, "world_size": 2}}
