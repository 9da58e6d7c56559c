"""Parts that run in every n-th step of real scripts take the CPU time that their own timers show."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from test_run import RUN, start, write

import stepscope
from stepscope.facts.correct.costs import step_groups

pytestmark = pytest.mark.full(every=2)

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


@pytest.mark.parametrize("period", [2, 3, 4])
@pytest.mark.parametrize("rare", [EVALUATION, LOGGING], ids=["evaluation", "logging"])
def test_steps_are_compared_with_those_that_do_as_much(tmp_path: Path, rare: str, period: int) -> None:
    """In CPU time, to a factor of two: other work takes caches and clock rate, elapsed time even more."""
    write(tmp_path, TORCH.format(rare=rare.strip(), period=period))
    done = start([*RUN, "--steps", "9", "train.py"], tmp_path)
    [(short, long)] = re.findall(r"steps (\S+) (\S+)", done.stdout)
    trace = stepscope.open(tmp_path / "train.stepscope", as_recorded=True, cache=False)
    steps = trace["steps"]["step"]
    events = np.bincount(trace.events["step"] + 1, minlength=steps.max() + 2)[steps + 1]
    truth = np.where(steps % period == period - 1, float(long), float(short))
    for group in step_groups(trace, events.astype(np.float64)):
        assert group.unrecorded is not None
        assert group.unrecorded["cpu_ns"] / 1e6 == pytest.approx(truth[group.chosen].mean(), rel=1.0)
