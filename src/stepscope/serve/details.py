"""The answer about one operation: what it costs, its instances, its launch, where it is written."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.serve.levels import event_of, place_of
from stepscope.serve.opened import OpenTrace
from stepscope.serve.panes import panes
from stepscope.serve.query import Query
from stepscope.serve.tables import kernel_configuration
from stepscope.summary.instances import alike, calls_of, runs_of, statistics
from stepscope.timeline import Operation
from stepscope.timeline.measure import Costs
from stepscope.timeline.names import short_name
from stepscope.timeline.places import Place, frames_around, module_places

Rows = NDArray[np.intp]
_MOST_ROWS, _MOST_SHAPES, _MOST_PLACES = 50, 100, 30


@dataclass(frozen=True)
class Subject:
    """What is told about: an operation of a level, or a raw event that was opened in place.

    Attributes:
        path: of the operation that it is or lies in.
        operation: itself.
        costs: of it alone.
        raw: its raw events.
        forward, backward: its partner events, -1 for none.
    """

    path: str
    operation: Operation
    costs: Costs
    raw: Rows
    forward: int
    backward: int

    @property
    def event(self) -> int | None:
        """The event that it is."""
        return self.operation.event if self.operation.event >= 0 else None


def details(opened: OpenTrace, query: Query) -> dict[str, Any]:
    """All that is known of an operation."""
    subject = _subject(opened, query)
    return {
        "path": subject.path,
        "level": subject.path.rpartition("/")[0],
        **_identity(opened, subject),
        **_costs(subject.costs),
        "arguments": _arguments(opened, subject.event),
        "instances": _instances(opened, subject),
        "launch": _launch(opened, subject.event),
        "device_work": _device_work(opened, subject),
        "kernel": _kernel(opened, subject),
        "forward": _partner(opened, subject.forward),
        "backward": _partner(opened, subject.backward),
        "source": [asdict(place) for place in _places(opened, subject)],
        "selects": panes(opened, subject.raw),
    }


def _subject(opened: OpenTrace, query: Query) -> Subject:
    timeline = opened.timeline
    if query.number("event") is None:
        path = "/".join(filter(None, query.text("path").split("/")))
        level, number = timeline.find(path)
        operation, costs = level.operations[number], level.costs.take(np.array([number]))
        partners = int(level.forward[number]), int(level.backward[number])
        return Subject(path, operation, costs, timeline.raw_events(path), *partners)
    event = event_of(opened, query)
    path = place_of(opened, event)["path"]
    if path:
        level, number = timeline.find(path)
        if level.operations[number].event == event:
            return _subject(opened, Query({"path": path}))
    operation, costs, raw = timeline.as_operation(event)
    rows = np.array([event])
    partners = int(timeline.index.forward_of(rows)[0]), int(timeline.index.backward_of(rows)[0])
    return Subject(path, operation, costs, raw, *partners)


# -- what it is


def _identity(opened: OpenTrace, subject: Subject) -> dict[str, Any]:
    operation, events, event = subject.operation, opened.trace.events, subject.event
    first = int(operation.rows[0]) if len(operation.rows) else None
    recorded = None if event is None else events.text("name")[event]
    return {
        "name": operation.name,
        "full_name": recorded or operation.name,
        "kind": operation.kind,
        "event": event,
        "category": None if event is None else events.text("category")[event],
        **_step(opened, subject),
        "stage": _stage(opened, operation, first),
        "track": _track(opened, operation.track),
        "module": _module(opened, _module_of(opened, operation)),
    }


def _known(column: NDArray[np.integer], row: int | None) -> int | None:
    value = -1 if row is None else int(column[row])
    return value if value >= 0 else None


def _step(opened: OpenTrace, subject: Subject) -> dict[str, int | None]:
    """By the path, as a stage may hold no event; by the event itself where it is in no step."""
    if subject.path:
        step, _, rank = subject.path.partition("/")[0][1:].partition(".")
        return {"step": int(step), "rank": int(rank)}
    rank_of = opened.timeline.index.rank
    return {"step": None, "rank": int(rank_of[subject.operation.rows[0]])}


def _stage(opened: OpenTrace, operation: Operation, first: int | None) -> str | None:
    if operation.kind == "stage":
        return operation.name
    if operation.kind == "step" or first is None:
        return None
    return opened.trace.events.text("stage")[first]


def _track(opened: OpenTrace, track: int) -> dict[str, Any] | None:
    if track < 0:
        return None
    table = opened.trace["tracks"]
    return {
        "id": track,
        "kind": table.text("kind")[track],
        "name": table.text("name")[track],
        "device": _known(table["device"], track),
        "stream": _known(table["stream"], track),
    }


def _module_of(opened: OpenTrace, operation: Operation) -> int:
    if operation.module >= 0 or operation.event < 0:
        return operation.module
    return int(opened.trace.events["module"][operation.event])


def _module(opened: OpenTrace, module: int) -> dict[str, Any] | None:
    if module < 0:
        return None
    table = opened.trace["modules"]
    return {"id": module, "path": table.text("path")[module], "class": table.text("class")[module]}


def _costs(costs: Costs) -> dict[str, Any]:
    def told(column: NDArray[np.int64]) -> int | None:
        return _known(column, 0)

    start = told(costs.start_ns)
    return {
        "start_ns": told(costs.device_start_ns) if start is None else start,
        "cpu_ns": told(costs.cpu_ns),
        "self_ns": told(costs.self_ns),
        "device_ns": told(costs.device_ns),
        "device_start_ns": told(costs.device_start_ns),
        "device_end_ns": told(costs.device_end_ns),
        "recompute_ns": told(costs.recompute_ns),
        "bound_by": "device" if costs.bound_by_device[0] else "cpu",
        "events": told(costs.events),
    }


def _arguments(opened: OpenTrace, event: int | None) -> dict[str, Any]:
    return {} if event is None else opened.trace.event_arguments(event)


# -- its instances


def _instances(opened: OpenTrace, subject: Subject) -> dict[str, Any] | None:
    operation, trace = subject.operation, opened.trace
    if operation.kind == "stage":
        rows = runs_of(trace, operation.name, _step(opened, subject)["rank"] or 0)
        return _of_ranges(trace["stages"].take(rows), operation.name)
    if operation.kind == "step":
        mine = trace["steps"]["rank"] == _step(opened, subject)["rank"]
        return _of_ranges(trace["steps"].take(mine), "steps")
    if operation.module >= 0:
        return opened.keep(("calls", operation.module), partial(_calls, opened, operation.module))
    if operation.event < 0:
        return None
    event, index = operation.event, opened.timeline.index
    name = trace.events.text("name")[event] or ""
    key = "instances", name, int(index.rank[event]), bool(index.on_device[event])
    return opened.keep(key, lambda: _of_events(opened, alike(trace, event), name))


def _calls(opened: OpenTrace, module: int) -> dict[str, Any] | None:
    """The recorded calls of a module, where there are any."""
    calls = calls_of(opened.trace, module)
    name = opened.timeline.contents.modules.name_in(module, -1)
    return _of_events(opened, calls, f"calls of {name}") if len(calls) else None


def _of_ranges(table: Any, name: str) -> dict[str, Any] | None:
    """Runs of a stage, or steps, on the side of the launch that takes longer."""
    if not len(table):
        return None
    device = "device_ns" if table.schema.name == "stages" else "device_busy_ns"
    on_cpu, on_device = table["end_ns"] - table["start_ns"], table[device]
    side = "device" if on_device.sum() >= on_cpu.sum() else "cpu"
    time = on_device if side == "device" else on_cpu
    order = np.argsort(-time, kind="stable")[:_MOST_ROWS].tolist()
    steps, start = table["step"], table["start_ns"]
    rows = [
        {"event": None, "step": int(steps[row]), "start_ns": int(start[row]),
         "duration_ns": int(time[row])}
        for row in order
    ]  # fmt: skip
    return {"of": name, "side": side, **asdict(statistics(time)), "shapes": [], "rows": rows}


def _of_events(opened: OpenTrace, rows: Rows, name: str) -> dict[str, Any]:
    events, index = opened.trace.events, opened.timeline.index
    time = events["duration_ns"][rows]
    longest = _longest(rows, time, _MOST_SHAPES)
    return {
        "of": name,
        "side": "device" if index.on_device[rows[0]] else "cpu",
        **asdict(statistics(time)),
        "shapes": _shapes(opened, longest),
        "rows": [
            {
                "event": event,
                "step": _known(events["step"], event),
                "start_ns": int(events["start_ns"][event]),
                "duration_ns": int(events["duration_ns"][event]),
            }
            for event in longest[:_MOST_ROWS].tolist()
        ],
    }


def _longest(rows: Rows, time: NDArray[np.int64], most: int = _MOST_ROWS) -> Rows:
    """The rows that take most time, the longest first; of equals the first."""
    if len(rows) > 2 * most:
        least = np.partition(time, len(time) - most)[len(time) - most]
        rows, time = rows[time >= least], time[time >= least]
    return rows[np.argsort(-time, kind="stable")[:most]]


def _shapes(opened: OpenTrace, longest: Rows) -> list[dict[str, Any]]:
    """The input shapes of the longest instances, those that take most time first."""
    found: dict[str, list[int]] = {}
    for event in np.sort(longest).tolist():  # in the order of the file, which is read in blocks
        shapes = opened.trace.event_arguments(event).get("Input Dims")
        if shapes:
            time = int(opened.trace.events["duration_ns"][event])
            found.setdefault(json.dumps(shapes), []).append(time)
    by_time = sorted(found.items(), key=lambda pair: -sum(pair[1]))[:_MOST_ROWS]
    return [
        {"shapes": shapes, "count": len(times), "mean_ns": sum(times) // len(times)}
        for shapes, times in by_time
    ]


# -- its launch and its device work


def _launch(opened: OpenTrace, event: int | None) -> dict[str, Any] | None:
    index = opened.timeline.index
    if event is None or index.launch[event] < 0:
        return None
    call = int(index.launch[event])
    delay = int(index.start[event] - index.start[call])
    return {**_reference(opened, call), "delay_ns": delay}


def _device_work(opened: OpenTrace, subject: Subject) -> dict[str, Any]:
    index, raw = opened.timeline.index, subject.raw
    work = raw[index.on_device[raw]]
    if subject.event is not None and index.on_device[subject.event]:
        work = work[:0]
    longest = _longest(work, index.duration[work])
    return {"count": len(work), "rows": [_work(opened, event) for event in longest.tolist()]}


def _work(opened: OpenTrace, event: int) -> dict[str, Any]:
    index, tracks = opened.timeline.index, opened.trace["tracks"]
    call = int(index.launch[event])
    return {
        **_reference(opened, event),
        "full_name": opened.trace.events.text("name")[event] or "",
        "stream": _known(tracks["stream"], int(index.track[event])),
        "start_ns": int(index.start[event]),
        "duration_ns": int(index.duration[event]),
        "launch": call,
        "delay_ns": int(index.start[event] - index.start[call]),
    }


def _kernel(opened: OpenTrace, subject: Subject) -> dict[str, Any] | None:
    """How the kernel was launched that the operation is, or the only one that it launched."""
    index, raw = opened.timeline.index, subject.raw
    work = raw[index.on_device[raw]]
    kernels = work[opened.trace.events.text("category").take(work).mask("kernel")]
    return kernel_configuration(opened, int(kernels[0])) if len(kernels) == 1 else None


def _partner(opened: OpenTrace, event: int) -> dict[str, Any] | None:
    return _reference(opened, event) if event >= 0 else None


def _reference(opened: OpenTrace, event: int) -> dict[str, Any]:
    return {"event": event, "name": short_name(opened.trace.events.text("name")[event] or "")}


# -- where it is written


def _places(opened: OpenTrace, subject: Subject) -> Iterable[Place]:
    """Calls and classes of modules, then recorded frames, each from the innermost outwards."""
    operation, index = subject.operation, opened.timeline.index
    if operation.kind in ("step", "stage") or not len(operation.rows):
        return []
    first = int(operation.rows[0])
    frames = frames_around(index, first)
    if not frames and subject.forward >= 0:
        frames = frames_around(index, subject.forward)  # autograd has no frames of its own
    found, module = [], max(_module_of(opened, operation), operation.context)
    parents = opened.trace["modules"]["parent"]
    while module >= 0:
        found += module_places(index, module)
        module = int(parents[module])
    return [*found, *frames][:_MOST_PLACES]
