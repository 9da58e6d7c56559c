"""Parts that run in every n-th step of real scripts take the CPU time that their own timers show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_run import RUN, start, write

import stepscope

pytestmark = pytest.mark.full

TORCH = """
import statistics, time, torch
from torch import nn
model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(3)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
X = torch.randn(200, 64)
spent = [[], []]
def rare():
    {rare}
begun = time.thread_time()
for i in range(100):
    loss = model(torch.randn(256, 64)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    if i % {period} == {period} - 1:
        rare()
    optimizer.step()
    now = time.thread_time()
    spent[i % {period} == {period} - 1].append(now - begun)
    begun = now
print("steps", *(statistics.median(times[len(times) // 3 :]) * 1e3 for times in spent))
"""
EVALUATION = """
    with torch.no_grad():
        for x in X:
            y = model(x[None])
            ((y - y.mean()) / (y.std() + 1e-5)).clamp(-1, 1).sum()
"""
LOGGING = """
    for x in X:
        (x.detach().float().square().mean().sqrt() + x.abs().max()).round()
"""


@pytest.mark.parametrize(("rare", "period"), [(EVALUATION, 3), (EVALUATION, 2), (LOGGING, 4), (LOGGING, 3)])
def test_cpu_time_is_what_the_script_measures(tmp_path: Path, rare: str, period: int) -> None:
    """After recording; elapsed time is that of a busy machine."""
    write(tmp_path, TORCH.format(rare=rare.strip(), period=period))
    done = start([*RUN, "--steps", "6", "train.py"], tmp_path)
    [(short, long)] = re.findall(r"steps (\S+) (\S+)", done.stdout)
    trace = stepscope.open(tmp_path / "train.stepscope")
    cost, each = trace.metadata.recording_cost, trace.metadata.capture["recorded_steps"]["each"]
    rare_steps = sum(step % period == period - 1 for step in trace["steps"]["step"].tolist())
    expected = (6 - rare_steps) * float(short) + rare_steps * float(long)
    assert "estimated_steps" not in cost
    assert sum(each["cpu_ns"]) / 1e6 - 6 * cost["removed_ns"] / 1e6 == pytest.approx(expected, rel=0.25)
