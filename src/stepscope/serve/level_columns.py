"""A timeline level as columns with a string table: exactly what the page draws.

Times are nanoseconds since the level's start, on devices too as recorded.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from stepscope.arrays import Ids
from stepscope.serve.trace_view import TraceView
from stepscope.timeline.level import Level
from stepscope.timeline.operation import Operation
from stepscope.trace.interner import Interner
from stepscope.trace.schema import STAGES


class ResourceRow(msgspec.Struct):
    """A thread, a stream, or (for steps) a rank.

    Attributes:
        id: number of the track or of the rank.
        kind: `cpu`, `device`, `communication`, or `rank` for steps.
        name: as recorded.
        device: number of its device, null for a thread or a rank.
        rank: of the process it belongs to.
        busy_ns: time in which the level's operations run on it.
        shown: whether the level lists it; offer `every=1` where one is not.
    """

    id: int
    kind: str
    name: str
    device: int | None
    rank: int
    busy_ns: int
    shown: bool


class OperationColumns(msgspec.Struct):
    """Columns of one length, a row for each operation; -1 means none.

    Attributes:
        id: last part of its path: the level's `path`, `/`, `id`.
        name: index into `strings`.
        stage: index into the axis's stages, -1 for none.
        kind: index into `strings`: step, stage, module, event, section, series or repeat.
        resource: thread of its CPU side (`resources.id`); for a step its rank.
        start_ns: of its CPU side; -1 if it has none, as a kernel.
        end_ns: of its CPU side; -1 if it has none.
        cpu_ns: CPU time inside it.
        self_ns: CPU time inside it and in none of its children.
        recompute_ns: CPU time that repeats forward work.
        device_ns: device busy time, a union of intervals.
        bound_by: index into `strings`: cpu or device.
        events: number of raw events inside it.
        opens: 0 if nothing is inside (a single event): do not ask for its level.
        event: id of its raw event, if it is exactly one.
        module: id of the module that it is a call of.
        recompute: 1 if all of it repeats forward work.
        forward: event id of its partner in forward.
        backward: event id of its partner in backward.
        launch: event id of the call that launched it, for device work.
        count: number of operations that it groups.
        least_ns: shortest of these.
        mean_ns: mean of these.
        most_ns: longest of these.
        slowest: id of the longest of these.
    """

    id: list[str]
    name: list[int]
    stage: list[int]
    kind: list[int]
    resource: list[int]
    start_ns: list[int]
    end_ns: list[int]
    cpu_ns: list[int]
    self_ns: list[int]
    recompute_ns: list[int]
    device_ns: list[int]
    bound_by: list[int]
    events: list[int]
    opens: list[int]
    event: list[int]
    module: list[int]
    recompute: list[int]
    forward: list[int]
    backward: list[int]
    launch: list[int]
    count: list[int]
    least_ns: list[int]
    mean_ns: list[int]
    most_ns: list[int]
    slowest: list[str]


class DeviceColumns(msgspec.Struct):
    """Columns of one length, a row for each operation and stream that it uses.

    Attributes:
        operation: row of `operations`.
        resource: the stream (`resources.id`).
        name: index into `strings`.
        event: id of the raw event, if it is exactly one, else -1.
        start_ns: start of its first device work.
        end_ns: end of its last device work.
        busy_ns: device busy time between these.
        count: number of pieces of device work.
    """

    operation: list[int]
    resource: list[int]
    name: list[int]
    event: list[int]
    start_ns: list[int]
    end_ns: list[int]
    busy_ns: list[int]
    count: list[int]


class WireLevel(msgspec.Struct):
    """One level of the timeline: the operations inside one operation.

    Attributes:
        path: of the operation that is opened; empty for the list of steps.
        name: of the operation that is opened.
        through: names of operations that were opened in place; show them in the level's title.
        start_ns: since the trace's start.
        length_ns: of the level.
        shift_ns: from the start of the CPU side to that of the device side.
        passed: raw events of the opened operation itself.
        hidden: raw events on resources that are not listed.
    """

    path: str
    name: str
    through: list[str]
    start_ns: int
    length_ns: int
    shift_ns: int
    passed: int
    hidden: int
    resources: list[ResourceRow]
    operations: OperationColumns
    device: DeviceColumns
    strings: list[str]


def wire_level(level: Level, view: TraceView) -> WireLevel:
    """A level of the view's timeline, ready to be encoded."""
    strings: Interner[str] = Interner()
    return WireLevel(
        path="/".join(level.path),
        name=level.name,
        through=list(level.through),
        start_ns=level.start_ns,
        length_ns=level.end_ns - level.start_ns,
        shift_ns=level.shift_ns,
        passed=level.passed,
        hidden=level.hidden,
        resources=_resources(level, view),
        operations=_operations(level, view, strings),
        device=_device(level, view, strings),
        strings=list(strings),
    )


def _resources(level: Level, view: TraceView) -> list[ResourceRow]:
    """The resources of a level, devices by their number."""
    devices = view.trace["tracks"]["device"]
    rows = []
    for one in level.resources:
        device = int(devices[one.id]) if one.kind != "rank" else -1
        number = device if device >= 0 else None
        rows.append(
            ResourceRow(one.id, one.kind, one.name, number, one.rank, one.busy_ns, one.shown)
        )
    return sorted(rows, key=lambda row: (row.rank, -1 if row.device is None else row.device))


def _operation_name(view: TraceView, operation: Operation) -> str:
    on_device = operation.event >= 0 and bool(view.timeline.index.on_device[operation.event])
    return view.short_name(operation.event) if on_device else operation.name


def _operations(level: Level, view: TraceView, strings: Interner[str]) -> OperationColumns:
    operations, costs = level.operations, level.costs
    sides = ("device" if bound else "cpu" for bound in costs.bound_by_device)
    return OperationColumns(
        id=[one.id for one in operations],
        name=strings.codes(_operation_name(view, one) for one in operations).tolist(),
        stage=_stages(view, operations),
        kind=strings.codes(one.kind for one in operations).tolist(),
        resource=[one.track for one in operations],
        start_ns=_since(level, costs.start_ns),
        end_ns=_since(level, costs.end_ns),
        cpu_ns=costs.cpu_ns.tolist(),
        self_ns=costs.self_ns.tolist(),
        recompute_ns=costs.recompute_ns.tolist(),
        device_ns=costs.device_ns.tolist(),
        bound_by=strings.codes(sides).tolist(),
        events=costs.events.tolist(),
        opens=(costs.events > 1).astype(int).tolist(),
        event=[one.event for one in operations],
        module=[one.module for one in operations],
        recompute=[int(one.recompute) for one in operations],
        forward=level.forward.tolist(),
        backward=level.backward.tolist(),
        launch=level.launch.tolist(),
        **_spreads(operations),
    )


def _stages(view: TraceView, operations: list[Operation]) -> list[int]:
    """The stage of each operation: of its first event; a step has none, a stage its own."""
    of_events = view.trace.events["stage"]
    return [
        STAGES.index(one.name)
        if one.kind == "stage" and one.name in STAGES
        else -1
        if one.kind == "step" or not len(one.rows)
        else int(of_events[one.rows[0]])
        for one in operations
    ]


def _spreads(operations: list[Operation]) -> dict[str, list[Any]]:
    """How many operations each row groups, and how these differ."""
    spreads = [one.spread for one in operations]
    return {
        "count": [one.count if one else 1 for one in spreads],
        "least_ns": [one.least_ns if one else -1 for one in spreads],
        "mean_ns": [one.mean_ns if one else -1 for one in spreads],
        "most_ns": [one.most_ns if one else -1 for one in spreads],
        "slowest": [one.slowest if one else "" for one in spreads],
    }


def _device(level: Level, view: TraceView, strings: Interner[str]) -> DeviceColumns:
    shown = [one.id for one in level.resources if one.shown and one.kind != "rank"]
    parts = level.costs.parts
    keep = np.flatnonzero(np.isin(parts.track, shown) | (not level.path))
    return DeviceColumns(
        operation=parts.operation[keep].tolist(),
        resource=parts.track[keep].tolist(),
        name=strings.codes(
            view.short_name(event) if event >= 0 else level.operations[operation].name
            for event, operation in zip(
                parts.event[keep].tolist(), parts.operation[keep].tolist(), strict=True
            )
        ).tolist(),
        event=parts.event[keep].tolist(),
        start_ns=_since(level, parts.start_ns[keep]),
        end_ns=_since(level, parts.end_ns[keep]),
        busy_ns=parts.busy_ns[keep].tolist(),
        count=parts.count[keep].tolist(),
    )


def _since(level: Level, times: Ids) -> list[int]:
    """Times since the level's start; -1 stays -1, earlier times are cut at 0."""
    since: list[int] = np.where(times < 0, -1, np.maximum(times - level.start_ns, 0)).tolist()
    return since
