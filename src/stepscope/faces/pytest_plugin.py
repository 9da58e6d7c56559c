"""pytest: a budget for the time of a training step, and steps recorded in a test.

pytest loads this module where stepscope is installed (entry point `pytest11`); nothing else of
stepscope is imported before a test asks for one of the fixtures.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from itertools import takewhile
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from stepscope.models.diff.significance import Decision
    from stepscope.trace.trace import Trace

Step = Callable[[], Any]

_WARMUP = 3  # calls that nothing counts: first launches, autotuning, compilation
_PAIR_S = 0.2  # that each side of a pair takes at least, in as many turns as that needs
_TURN_S = 0.005  # of calls of one side; a core's speed varies within seconds: pairs differed by 10 %, so by 2
_LONGEST_S = 60.0  # of all pairs: without a decision by then the test is skipped
_MOST_MORE = 25  # calls than are recorded; JAX takes 22 where a function takes back nothing that it returned
_BUSY = 1.25  # runnable threads per CPU, above which an absolute time says little
_LEAST = {"budget": 1e-9, "limit": 0.0, "pairs": 1}  # s, percent, count; in the order of the marker

_clock, _load = time.perf_counter, getattr(os, "getloadavg", lambda: (0.0,))


def pytest_configure(config: pytest.Config) -> None:
    """Describe the marker."""
    config.addinivalue_line(
        "markers",
        "step_time(budget=None, limit=2, pairs=30): how long a step may take (seconds), or how much longer "
        "than `base` (percent); `time_steps` decides after at most this many pairs of measurements",
    )


@pytest.fixture
def record_steps(tmp_path: Any) -> Callable[..., Trace]:
    """A function that records calls of a step and returns their trace.

    Example:
        def test_nothing_waits(record_steps):
            trace = record_steps(lambda: train_step(model, batch), steps=3)
    """
    return lambda step, steps=3: _record(step, steps, tmp_path / "steps.stepscope")


@pytest.fixture
def time_steps(request: pytest.FixtureRequest, record_steps: Callable[..., Trace]) -> Callable[..., None]:
    """A function that fails the test if a step takes longer than the marker `step_time` allows.

    What the pairs cannot tell skips the test: it has neither passed nor failed.

    Example:
        @pytest.mark.step_time(limit=2)
        def test_the_new_loss_is_no_slower(time_steps):
            time_steps(lambda: train_step(new_loss), base=lambda: train_step(old_loss))
    """
    marker = request.node.get_closest_marker("step_time")
    given = {**dict(zip(_LEAST, marker.args, strict=False)), **marker.kwargs} if marker else {}
    allowed: dict[str, Any] = {"budget": None, "limit": 2.0, "pairs": 30, **given}

    def check(step: Step, base: Step | None = None) -> None:
        for key, value in given.items():
            if not isinstance(value, (int, float)) or not _LEAST.get(key, inf) <= value < inf:
                pytest.fail(f"step_time takes numbers, at least {_LEAST}; found {key}={value!r}", False)
        if (base is None) == (allowed["budget"] is None):
            pytest.fail("time_steps needs a budget in its marker, or a base step to compare with", False)
        decision, seconds, pairs = _measure(step, base, **allowed)
        line = _line(decision, seconds, pairs, allowed["budget"])
        request.node.user_properties.append(("step_time", line))
        if decision.verdict == "slower" and base is None and (load := _busy()):
            pytest.skip(f"cannot tell: {line}, but {load}; compare with a base step")
        if decision.verdict == "slower":
            pytest.fail(f"{line}\n{_evidence(record_steps(step))}", False)
        if decision.verdict == "cannot tell":
            pytest.skip(f"cannot tell: {line}")

    return check


def _measure(
    step: Step, base: Step | None, budget: float | None, limit: float, pairs: int
) -> tuple[Decision, float, int]:
    """The decision, the median step in seconds, and how many pairs there are."""
    from stepscope.models.diff.significance import ALIKE, Decision, decide

    sides = [(side, _calls(side)) for side in (base, step) if side]
    times: list[tuple[float, float]] = []
    decision, end = Decision(), _clock() + _LONGEST_S
    while decision.verdict == "cannot tell" and len(times) < pairs and _clock() < end:
        times.append(_pair(sides, budget, base_first=len(times) % 2 == 0))
        decision = decide(times, limit, ALIKE) if base else decide(times, 0.0)
    return decision, sorted(after for _, after in times)[len(times) // 2], len(times)


def _pair(sides: list[tuple[Step, int]], budget: float | None, base_first: bool) -> tuple[float, float]:
    """Times of the base, or the budget, and of the step, s; in turns whose order alternates."""
    order = range(len(sides))
    spent: list[list[float]] = [[] for _ in sides]
    while sum(map(sum, spent)) < _PAIR_S * len(sides):
        for place in order if base_first else reversed(order):
            step, calls = sides[place]
            spent[place].append(_time(step, calls) * calls)
        base_first = not base_first
    means = [sum(turns) / len(turns) / calls for turns, (_, calls) in zip(spent, sides, strict=True)]
    return (means[0] if len(sides) > 1 else float(budget or 0.0)), means[-1]


def _calls(step: Step) -> int:
    """How many calls a turn takes."""
    for _ in range(_WARMUP):
        seconds = _time(step, 1)
    return max(round(_TURN_S / max(seconds, 1e-6)), 1)


def _time(step: Step, calls: int) -> float:
    """Seconds that a call takes, until the devices have ended what it started."""
    begin = _clock()
    for _ in range(calls):
        result = step()
    _wait(result)
    return max(_clock() - begin, 1e-9) / calls


def _wait(result: Any) -> None:
    from stepscope.record.device_times import wait_for_devices

    if (jax := sys.modules.get("jax")) is not None:
        jax.block_until_ready(result)
    wait_for_devices()


def _record(step: Step, steps: int, path: Any) -> Trace:
    import stepscope

    with stepscope.profile(path=path, overwrite=True, warmup=1, steps=steps) as recording:
        for _ in takewhile(lambda _: not recording.is_over, range(steps + _MOST_MORE)):
            step()
            stepscope.step()
    return stepscope.open(path)


def _busy() -> str | None:
    load, cores = _load()[0], os.cpu_count() or 1
    return f"{load:.1f} threads run on {cores} CPUs" if load > _BUSY * cores else None


def _line(decision: Decision, seconds: float, pairs: int, budget: float | None) -> str:
    """The step and its interval, in one line.

    Example: `the step takes 172.0 ms, +14.7 % against the base (+12.0 to +17.4 %, 8 pairs)`.
    """
    against = f"the budget {budget * 1e3:.1f} ms" if budget else "the base"
    interval = f"{decision.least:+.1f} to {decision.most:+.1f} %" if isfinite(decision.most) else "too few"
    known = f"{decision.change:+.1f} % against {against} ({interval}, {pairs} pairs)"
    return f"the step takes {seconds * 1e3:.1f} ms, {known}"


def _evidence(trace: Trace) -> str:
    """What the step spends its time on, and how to see more."""
    from stepscope.facts.summary.report_facts import summarize

    stages = sorted(summarize(trace).stages, key=lambda row: -row.share)
    parts = ", ".join(f"{row.stage} {row.share:.0%} of the step" for row in stages[:3])
    return f"recorded: {parts}; stepscope view {trace.metadata.source}"
