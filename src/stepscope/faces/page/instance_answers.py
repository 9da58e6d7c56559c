"""Part of an operation's details: statistics of all instances like it, and the longest of them."""

import json
from functools import partial

import msgspec
import numpy as np
from msgspec.structs import asdict

from stepscope.base.arrays import Rows, Times
from stepscope.faces.page.selection import known, longest_of_each
from stepscope.faces.page.trace_view import TraceView
from stepscope.facts.annotate.range_names import MODULE_FRAME, MODULE_RANGE
from stepscope.facts.timeline import Operation
from stepscope.facts.timeline.operation import StepId
from stepscope.trace.arguments import parse
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

_MAX_ROWS, _MAX_SHAPES = 50, 100


class DurationStatistics(msgspec.Struct, kw_only=True):
    """Statistics of some durations, ns."""

    count: int
    total_ns: int
    mean_ns: int
    median_ns: int
    std_ns: int
    least_ns: int
    most_ns: int


def statistics(durations: Times) -> DurationStatistics:
    """Statistics of at least one duration, int64, shape (instances,), ns."""
    return DurationStatistics(
        count=len(durations),
        total_ns=int(durations.sum()),
        mean_ns=round(durations.mean()),
        median_ns=round(float(np.median(durations))),
        std_ns=round(durations.std()),
        least_ns=int(durations.min()),
        most_ns=int(durations.max()),
    )


def same_name_events(trace: Trace, event: int) -> Rows:
    events, tracks = trace.events, trace["tracks"]
    same = np.flatnonzero(events["name"] == events["name"][event])
    track, own = events["track"][same], int(events["track"][event])
    rank, on_device = tracks["rank"], tracks["device"] >= 0
    return same[(rank[track] == rank[own]) & (on_device[track] == on_device[own])]


class Shapes(msgspec.Struct):
    """Instances with the same input shapes."""

    shapes: str  # as JSON text
    count: int
    mean_ns: int


class Instance(msgspec.Struct):
    """One instance."""

    event: int | None  # null for a step or a stage
    step: int | None  # null outside all steps
    duration_ns: int


class Instances(DurationStatistics, kw_only=True):
    """All events of one name on one rank, all calls of a module, all runs of a stage, or all steps."""

    of: str  # what they are instances of
    side: str  # cpu or device: where durations were measured
    shapes: list[Shapes]  # input shapes of the longest instances
    rows: list[Instance]  # the longest instances, at most 50


def instances_of(view: TraceView, path: str, operation: Operation) -> Instances | None:
    """All runs, calls or events like an operation; None if there are none."""
    trace, rank = view.trace, StepId.of(path).rank
    if operation.kind == "stage":
        stages = trace["stages"]
        runs = stages.text("stage").mask(operation.name) & (stages["rank"] == rank)
        return _of_ranges(stages.take(runs), operation.name)
    if operation.kind == "step":
        return _of_ranges(trace["steps"].take(trace["steps"]["rank"] == rank), "steps")
    if operation.module >= 0:
        return view.cached(("calls", operation.module), partial(_calls, view, operation.module))
    if operation.event < 0:
        return None
    event, index = operation.event, view.timeline.index
    code = int(trace.events["name"][event])
    key = "instances", code, int(index.rank[event]), bool(index.on_device[event])
    name = trace.events.text("name")[event] or ""
    return view.cached(key, lambda: _of_events(view, same_name_events(trace, event), name))


def _calls(view: TraceView, module: int) -> Instances | None:
    """The recorded calls of a module; None if only its operators are known."""
    own = np.flatnonzero(view.trace.events["module"] == module)
    names = view.trace.events.text("name").take(own)
    calls = own[names.where(lambda name: name.startswith((MODULE_RANGE, MODULE_FRAME)))]
    name = view.timeline.contents.modules.name_in(module, -1)
    return _of_events(view, calls, f"calls of {name}") if len(calls) else None


def _of_ranges(table: Table, name: str) -> Instances | None:
    """Runs of a stage, or steps, on the side of the launch that takes longer."""
    if not len(table):
        return None
    device = "device_ns" if table.schema.name == "stages" else "device_busy_ns"
    on_cpu, on_device = table["end_ns"] - table["start_ns"], table[device]
    side = "device" if on_device.sum() >= on_cpu.sum() else "cpu"
    time = on_device if side == "device" else on_cpu
    order = np.argsort(-time, kind="stable")[:_MAX_ROWS].tolist()
    rows = [Instance(None, int(table["step"][row]), int(time[row])) for row in order]
    return Instances(of=name, side=side, **asdict(statistics(time)), shapes=[], rows=rows)


def _of_events(view: TraceView, rows: Rows, name: str) -> Instances:
    events, index = view.trace.events, view.timeline.index
    time = events["duration_ns"][rows]
    longest = rows[longest_of_each(np.zeros(len(rows), np.int64), time, _MAX_SHAPES)]
    return Instances(
        of=name,
        side="device" if index.on_device[rows[0]] else "cpu",
        **asdict(statistics(time)),
        shapes=_shapes(view, longest),
        rows=[
            Instance(event, known(events["step"], event), int(events["duration_ns"][event]))
            for event in longest[:_MAX_ROWS].tolist()
        ],
    )


def _shapes(view: TraceView, longest: Rows) -> list[Shapes]:
    """Input shapes of the longest instances, those that take most time first."""
    events, found = view.trace.events, dict[str, list[int]]()
    texts = view.trace.arguments.texts(events["source"][longest])
    for event, text in zip(longest.tolist(), texts, strict=True):
        if b"Input Dims" in text and (shapes := parse(text).get("Input Dims")):
            found.setdefault(json.dumps(shapes), []).append(int(events["duration_ns"][event]))
    by_time = sorted(found.items(), key=lambda pair: -sum(pair[1]))[:_MAX_ROWS]
    return [Shapes(text, len(times), sum(times) // len(times)) for text, times in by_time]
