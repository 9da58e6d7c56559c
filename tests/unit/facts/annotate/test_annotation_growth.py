"""The work of annotation grows with the events: no step may look at those of all steps."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stepscope.facts.annotate import annotate
from stepscope.facts.annotate.device.one_off_costs import one_off_costs
from stepscope.facts.annotate.steps import ranges
from stepscope.facts.annotate.steps.steps import _period
from stepscope.facts.roofline.operator_work import Operators
from stepscope.testing import drawn_trace
from stepscope.trace.intervals import Intervals
from stepscope.trace.nesting import outermost
from stepscope.trace.sets import distinct
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace


def trace_of(steps: int) -> Trace:
    """Steps with names of their own, of forward, loss, backward, optimizer, and a kernel each."""
    return drawn_trace(
        "\n".join(
            f"""
            main     | {at}      {at + 90} | ProfilerStep#{step}
            main     | {at + 5}  {at + 20} | aten::mm            | seq={step}
            main     | {at + 6}  {at + 9}  | cudaLaunchKernel    | corr={step}
            main     | {at + 22} {at + 25} | annotation {step}   | cat=annotation
            autograd | {at + 30} {at + 50} | MmBackward0         | seq={step} fwd=1
            main     | {at + 60} {at + 80} | Optimizer.step#SGD.step
            stream 7 | {at + 12} {at + 40} | kernel_{step}       | corr={step}
            """
            for step, at in ((step, step * 100) for step in range(steps))
        )
    )


def touched(steps: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Rows and values that tests of text, and intervals that clipping, look at."""
    count = 0
    where, clip = Text.where, Intervals.clip

    def counted_where(self: Text, test: Callable[[str], bool]) -> object:
        def counted(value: str) -> bool:
            nonlocal count
            count += 1
            return test(value)

        nonlocal count
        count += len(self)
        return where(self, counted)

    def counted_clip(self: Intervals, start: int, end: int) -> Intervals:
        nonlocal count
        found = clip(self, start, end)
        count += len(found)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Text, "where", counted_where)
        patch.setattr(Intervals, "clip", counted_clip)
        trace = annotate(trace_of(steps), None)
    assert len(trace["steps"]) == steps
    return count


def test_ten_times_the_steps_are_ten_times_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    assert touched(300, monkeypatch) <= 12 * touched(30, monkeypatch)


def compared(events: int) -> int:
    """How many names of events in a row without a pattern are compared."""
    count = 0

    class Counted(np.ndarray):
        def __eq__(self, other: object) -> object:  # type: ignore[override]
            nonlocal count
            count += self.size
            return np.asarray(self) == np.asarray(other)

    codes = np.random.default_rng(0).choice([0, 0, 0, 1, 2], events)
    codes[0] = 0
    assert _period(codes.view(Counted)) is None
    return count


def test_a_search_for_a_pattern_does_not_compare_all_with_all() -> None:
    assert compared(30_000) <= 12 * compared(3_000)


def test_names_of_their_own_in_each_step_take_no_square_of_memory() -> None:
    trace = annotate(trace_of(300), None)
    tracemalloc.start()
    one_off_costs(trace, 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 500 * len(trace.events)  # bytes; a table of 900 names by 300 steps has 2 MB


def test_devices_beyond_256_are_one() -> None:
    lines = ["main | 0 9000 | ProfilerStep#0"]
    lines += [f"stream {n} | {10 * n} {10 * n + 5} | kernel" for n in range(1, 301)]
    trace = drawn_trace("\n".join(lines))
    tracks = trace["tracks"]
    numbers = [number if device >= 0 else -1 for number, device in enumerate(tracks["device"].tolist())]
    found = annotate(trace.with_table(tracks.with_columns(device=numbers)), None)
    assert len(distinct(found["tracks"]["device"])) == 257  # and -1, of the host
    assert len(distinct(found["idle"]["device"])) == 256
    (message,) = [row["message"] for row in found["warnings"].rows() if row["code"] == "many_devices"]
    assert message == "the file names 300 devices; the last 45 are taken for one"


def test_memory_of_devices_beyond_256_is_of_one() -> None:
    trace = drawn_trace("main | 0 9000 | ProfilerStep#0")
    rows = range(300)
    columns = {"time_ns": rows, "rank": [0] * 300, "address": rows, "bytes": [512] * 300}
    table = Table(trace["memory"].schema, {**columns, "device": [f"cuda:{n}" for n in rows]})
    found = annotate(trace.with_table(table), None)
    assert len(set(found["memory"].text("device"))) == 256
    assert [row["code"] for row in found["warnings"].rows()] == ["many_devices"]


def test_steps_beyond_the_first_thousands_are_said_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepscope.facts.annotate.steps.steps._MOST_STEPS", 7)
    trace = annotate(trace_of(20), None)
    assert trace["steps"]["step"].tolist() == [*range(7)]
    assert int(trace.events["step"].max()) == 6
    (warning,) = [row for row in trace["warnings"].rows() if row["code"] == "many_steps"]
    assert (warning["message"], warning["count"]) == ("only the first 7 steps are read", 13)


def test_modules_nested_by_thousands_have_a_limit() -> None:
    depth = 5000
    frames = (f"main | {n} {2 * depth - n} | nn.Module: Block_{n} | cat=python" for n in range(depth))
    trace = annotate(drawn_trace("\n".join([*frames, f"main | {depth - 1} {depth} | aten::mm"])), None)
    paths = list(trace["modules"].text("path"))
    assert len(paths) == depth
    assert max(path.count(".") for path in paths if path) == 99


def test_paths_of_modules_may_have_thousands_of_levels() -> None:
    path = ".".join(["a"] * 2000)
    trace = annotate(drawn_trace(f"main | 0 9 | stepscope.module: {path}\nmain | 1 5 | aten::mm"))
    assert len(trace["modules"]) == 2001


def looked_up(operators: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often columns are asked for where a compiled program runs so many operators."""
    lines, code = ["main | 0 90000 | ## Call CompiledFxGraph fw ##"], ["def call(self, args):"]
    for n in range(operators):
        lines.append(f"main | {10 * n + 5} {10 * n + 8} | aten::mm")
        code.append(f"    # Source Nodes: [n{n}]\n    extern_kernels.mm(a, b, out=buf{n})")
    node = {"target": "mm", "path": "", "elements": 1, "operations": 1, "reads": []}
    program = {"key": "fw", "backward": False, "code": "\n".join(code)}
    nodes = [{"name": f"n{n}", **node} for n in range(operators)]
    graph = {"region": "0/0", "base": "", "inputs": [], "nodes": nodes, "programs": [program]}
    properties, model = {"compiled": {"graphs": [graph]}}, {"name": "net", "class": "Net"}
    drawn = drawn_trace("\n".join(lines), properties=properties, model=model)
    count, get = 0, Table.__getitem__

    def counted(self: Table, name: str) -> object:
        nonlocal count
        count += 1
        return get(self, name)

    with monkeypatch.context() as patch:
        patch.setattr(Table, "__getitem__", counted)
        annotate(drawn, None)
    return count


def test_time_between_operators_of_a_program_takes_no_square(monkeypatch: pytest.MonkeyPatch) -> None:
    assert looked_up(300, monkeypatch) <= 12 * looked_up(30, monkeypatch)


def test_operators_nested_by_thousands_are_looked_at_by_level(monkeypatch: pytest.MonkeyPatch) -> None:
    depth = 2000
    nested = (f"main | {n} {2 * depth - n} | aten::unknown" for n in range(depth))
    trace = annotate(drawn_trace("\n".join(nested)), None)
    levels = 0

    def counted(self: Operators, rows: object) -> None:
        nonlocal levels
        levels += 1

    monkeypatch.setattr(Operators, "_evaluate", counted)
    rows = np.arange(depth)
    assert Operators.of(trace).known_around(rows).tolist() == [-1] * depth
    assert levels <= 200


def loops_tried(threads: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many groups of ranges are tried as the loop where each thread has one."""
    lines = (
        f"worker{thread} | {at} {at + 5} | train iteration {at} | cat=annotation"
        for thread in range(threads)
        for at in (0, 10, 20)
    )
    count = 0

    def counted(*given: Any) -> object:
        nonlocal count
        count += 1
        return outermost(*given)

    with monkeypatch.context() as patch:
        patch.setattr(ranges, "outermost", counted)
        annotate(drawn_trace("\n".join(lines)), None)
    return count


def test_loops_of_thousands_of_threads_are_not_all_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < loops_tried(200, monkeypatch) == loops_tried(400, monkeypatch)
