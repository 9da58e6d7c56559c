"""Step length, device busy and idle time of every shared trace are equal wherever shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

from stepscope.analyze import RuleContext
from stepscope.analyze.analysis import analysis_of
from stepscope.errors import StepscopeError
from stepscope.faces.page.axis_answers import area
from stepscope.faces.page.operation_details import details
from stepscope.faces.page.report_answers import overview
from stepscope.faces.page.requests import Query
from stepscope.faces.page.trace_view import TraceView
from stepscope.facts.annotate.steps.step_table import ranks_with_steps
from stepscope.facts.summary.report_facts import summarize
from stepscope.models.diff import compare
from stepscope.models.whatif import predict
from stepscope.models.whatif.ranking import graph_of
from stepscope.trace.trace import Trace

SUFFIXES = (".json", ".gz", ".pb", ".sqlite")
LARGE = 200_000  # events; a graph of more takes longer than all others together


class Times(NamedTuple):
    """Mean length, busy and idle time of some steps, ms; None where it is not stated."""

    length: float
    busy: float | None
    idle: float | None


def test_every_command_means_the_same_by_a_step(traces: Path, opened: Callable[[str], Trace]) -> None:
    count = 0
    for name, trace in opened_traces(traces, opened):
        rank = ranks_with_steps(trace)[0]
        steps = summarize(trace, rank).steps.numbers
        expected = of_query(trace, rank, steps)
        for where, found in stated(trace, rank, steps):
            assert found == pytest.approx(expected, abs=1e-6), (name, where)
        count += 1
    assert count > 30


def opened_traces(folder: Path, opened: Callable[[str], Trace]) -> Iterator[tuple[str, Trace]]:
    """The shared traces with steps, each opened once."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name.endswith(SUFFIXES):
            name = str(path.relative_to(folder))
            try:
                trace = opened(name)
            except StepscopeError:
                continue
            if len(trace["steps"]):
                yield name, trace


def stated(trace: Trace, rank: int, steps: list[int]) -> Iterator[tuple[str, Times]]:
    """What each command and each answer of the page states of these steps."""
    summary = summarize(trace, rank)
    yield "report", of_json(msgspec.to_builtins(summary.steps))
    if summary.devices:
        yield "report's devices", of_devices(msgspec.to_builtins(summary))
    yield "analyze", of_json(analysis_of(RuleContext(trace, rank), []).to_json()["steps"])
    yield "diff", of_diff(trace, rank, steps)
    view = TraceView(trace)
    yield "page's steps", of_page(view, rank, steps)
    facts = overview(view, Query({"rank": str(rank)})).facts
    assert facts is not None
    yield "page's facts", of_json(vars_of(facts.steps))
    yield "page's details", of_details(view, rank, steps)
    if summary.devices:
        yield "page's area", of_area(view, rank, steps)
    if len(trace.events) < LARGE and facts.steps.mean_ms:
        answer = msgspec.to_builtins(predict(graph_of(trace, None, rank), []))
        yield "whatif", of_json({**answer, "mean_ms": answer["measured_step_ms"]})


def of_query(trace: Trace, rank: int, steps: list[int]) -> Times:
    """What `stepscope query` gives, None where no device works."""
    row = trace.query(f"""
        select avg(window_end_ns - window_start_ns) / 1e6 as length,
            avg(device_busy_ns) / 1e6 as busy, avg(device_idle_ns) / 1e6 as idle
        from steps where rank = {rank} and step in ({", ".join(map(str, steps))})
    """).to_pylist()[0]
    works = row["busy"] + row["idle"] > 0
    return Times(row["length"], *(row[key] if works else None for key in ("busy", "idle")))


def of_json(steps: dict[str, Any]) -> Times:
    return Times(*(steps[key] for key in ("mean_ms", "device_busy_ms", "device_idle_ms")))


def vars_of(steps: Any) -> dict[str, Any]:
    return {key: getattr(steps, key) for key in ("mean_ms", "device_busy_ms", "device_idle_ms")}


def of_devices(report: dict[str, Any]) -> Times:
    """By the row of the device that computes longest; its own exposed communication is busy time."""
    device = max(report["devices"], key=lambda one: one["computing_ms"])
    exposed = device["communication_ms"] - device["overlapped_ms"]
    idle = sum(device["idle_ms"].values()) - exposed
    return Times(report["steps"]["mean_ms"], device["computing_ms"] + exposed, idle)


def of_diff(trace: Trace, rank: int, steps: list[int]) -> Times:
    """By the samples that `stepscope diff` compares."""
    run = compare(trace, trace, rank=rank).before
    chosen = np.isin(run.steps, steps)
    length = float(run.step_ns[chosen].mean()) / 1e6
    busy = run.parts["time use"].times.get(("device busy",)) if "time use" in run.parts else None
    if busy is None:
        return Times(length, None, None)
    mean = float(busy[chosen].mean()) / 1e6
    return Times(length, mean, length - mean)


def of_page(view: TraceView, rank: int, steps: list[int]) -> Times:
    """By the bars of the steps."""
    rows = [row for row in overview(view, Query({})).steps if row.rank == rank]
    return mean_of(
        [(row.runtime_ns, row.device_busy_ns, row.device_idle_ns) for row in rows if row.step in steps]
    )


def of_details(view: TraceView, rank: int, steps: list[int]) -> Times:
    """By the details of each step, which state its busy time."""
    busy = [details(view, Query({"path": f"s{step}.{rank}"})).device_ns for step in steps]
    expected = of_page(view, rank, steps)
    if expected.busy is None:
        assert not any(busy)
        return expected
    return expected._replace(busy=float(np.mean(busy)) / 1e6)


def of_area(view: TraceView, rank: int, steps: list[int]) -> Times:
    """By the statistics of the part of the time axis that each step's window covers."""
    table = view.trace["steps"]
    rows = table.take((table["rank"] == rank) & np.isin(table["step"], steps))
    columns = (rows[name].tolist() for name in ("window_start_ns", "window_end_ns"))
    return mean_of([of_window(view, rank, *window) for window in zip(*columns, strict=True)])


def of_window(view: TraceView, rank: int, start: int, end: int) -> tuple[int, int, int]:
    found = area(view, Query({"from": str(start), "to": str(end)}))
    shares = [one for one in found.devices if one.rank == rank]
    idle = min((sum(one.idle_ns.values()) for one in shares), default=end - start)
    busy = max((one.computing_ns + one.copying_ns + one.communicating_ns for one in shares), default=0)
    return end - start, busy, idle


def mean_of(rows: list[tuple[int, int, int]]) -> Times:
    length, busy, idle = (np.array(rows, np.float64).mean(axis=0) / 1e6).tolist()
    return Times(length, busy, idle) if busy + idle else Times(length, None, None)
