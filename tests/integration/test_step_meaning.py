"""Step length, device busy and idle time of every shared trace are equal wherever shown."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import stepscope
from stepscope.analyze.rule_context import RuleContext
from stepscope.annotate.steps.steps import ranks_with_steps
from stepscope.diff import compare
from stepscope.errors import StepscopeError
from stepscope.graph.step_window import find_window
from stepscope.serve.overview_answers import StepRow, _steps
from stepscope.serve.trace_view import TraceView
from stepscope.summary.report_facts import summarize
from stepscope.trace.trace import Trace

SUFFIXES = (".json", ".gz", ".pb", ".sqlite")


def opened(folder: Path) -> list[tuple[str, Trace]]:
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name.endswith(SUFFIXES):
            try:
                trace = stepscope.open(path, cache=False)
            except StepscopeError:
                continue
            if len(trace["steps"]):
                found.append((str(path.relative_to(folder)), trace))
    return found


def of_query(trace: Trace, rank: int, steps: list[int]) -> list[float]:
    """Mean length, busy and idle time of some steps, ms."""
    row = trace.query(f"""
        select avg(window_end_ns - window_start_ns) / 1e6, avg(device_busy_ns) / 1e6,
            avg(device_idle_ns) / 1e6
        from steps where rank = {rank} and step in ({", ".join(map(str, steps))})
    """).to_pylist()[0]
    return list(row.values())


def answer(trace: Trace) -> list[StepRow]:
    """The steps that the page shows."""
    return _steps(TraceView(trace))


def test_every_command_means_the_same_by_a_step(traces: Path) -> None:
    for name, trace in opened(traces):
        rank = ranks_with_steps(trace)[0]
        summary, run = summarize(trace, rank), compare(trace, trace, rank=rank)
        chosen = summary.steps.numbers
        length, busy, idle = of_query(trace, rank, chosen)
        assert summary.steps.mean_ms == pytest.approx(length), name
        assert RuleContext(trace, rank).step_ms == pytest.approx(length), name
        if length:
            assert find_window(trace, rank).measured_ns.mean() / 1e6 == pytest.approx(length), name
        steps = np.isin(run.before.steps, chosen)
        assert run.before.step_ns[steps].mean() / 1e6 == pytest.approx(length), name
        page = [row for row in answer(trace) if row.rank == rank and row.step in chosen]
        assert np.mean([row.runtime_ns for row in page]) / 1e6 == pytest.approx(length), name
        assert np.mean([row.device_busy_ns for row in page]) / 1e6 == pytest.approx(busy), name
        if summary.devices:
            device = max(summary.devices, key=lambda one: one.computing_ms)
            exposed = device.idle_ms["communication"]
            assert device.computing_ms + exposed == pytest.approx(busy, abs=1e-6), name
            assert sum(device.idle_ms.values()) - exposed == pytest.approx(idle, abs=1e-6), name
            use = run.before.parts["time use"].times
            assert use["device busy",][steps].mean() / 1e6 == pytest.approx(busy), name
