"""A timeline level as columns with a string table: exactly what the page draws.

Times are nanoseconds since the level's start, on devices too as recorded.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from stepscope.base.arrays import Ids
from stepscope.faces.page.requests import filled
from stepscope.faces.page.trace_view import TraceView
from stepscope.facts.timeline.event_index import values_at
from stepscope.facts.timeline.level import Level, ResourceRow
from stepscope.facts.timeline.operation import Operation
from stepscope.facts.timeline.operation_costs import Costs
from stepscope.trace.schema import STAGES
from stepscope.trace.sets import Interner


class OperationColumns(msgspec.Struct):
    """Columns of one length, a row for each operation; -1 means none."""

    id: list[str]  # last part of its path: the level's `path`, `/`, `id`
    name: list[int]  # index into `strings`
    stage: list[int]  # index into the axis's stages, -1 for none
    kind: list[int]  # index into `strings`: step, stage, module, event, section, series or repeat
    resource: list[int]  # thread of its CPU side (`resources.id`); for a step its rank
    start_ns: list[int]  # of its CPU side; -1 if it has none, as a kernel
    end_ns: list[int]  # of its CPU side; -1 if it has none
    cpu_ns: list[int]  # CPU time inside it
    self_ns: list[int]  # CPU time inside it and in none of its children
    recompute_ns: list[int]  # CPU time that repeats forward work
    device_ns: list[int]  # device busy time, a union of intervals
    bound_by: list[int]  # index into `strings`: cpu or device
    events: list[int]  # number of raw events inside it
    opens: list[int]  # 0 if nothing is inside (a single event): do not ask for its level
    event: list[int]  # id of its raw event, if it is exactly one
    module: list[int]  # id of the module that it is a call of
    forward: list[int]  # event id of its partner in forward
    backward: list[int]  # event id of its partner in backward
    launch: list[int]  # event id of the call that launched it, for device work
    count: list[int]  # number of operations that it groups
    least_ns: list[int]  # shortest of these
    mean_ns: list[int]  # mean of these
    most_ns: list[int]  # longest of these
    slowest: list[str]  # id of the longest of these


class DeviceColumns(msgspec.Struct):
    """Columns of one length, a row for each operation and stream that it uses."""

    operation: list[int]  # row of `operations`
    resource: list[int]  # the stream (`resources.id`)
    name: list[int]  # index into `strings`
    start_ns: list[int]  # start of its first device work
    end_ns: list[int]  # end of its last device work
    busy_ns: list[int]  # device busy time between these


class WireLevel(msgspec.Struct):
    """One level of the timeline: the operations inside one operation."""

    path: str  # of the operation that is opened; empty for the list of steps
    name: str  # of the operation that is opened
    through: list[str]  # names of operations that were opened in place; show them in the level's title
    start_ns: int  # since the trace's start
    length_ns: int  # of the level
    shift_ns: int  # from the start of the CPU side to that of the device side
    passed: int  # raw events of the opened operation itself
    hidden: int  # raw events on resources that are not listed
    resources: list[ResourceRow]
    operations: OperationColumns
    device: DeviceColumns
    strings: list[str]


def wire_level(level: Level, view: TraceView) -> WireLevel:
    strings: Interner[str] = Interner()
    return filled(
        WireLevel,
        level,
        path="/".join(level.path),
        through=list(level.through),
        length_ns=level.end_ns - level.start_ns,
        resources=resources_of(level),
        operations=operation_columns([level], view, strings),
        device=device_columns([level], view, strings),
        strings=list(strings),
    )


def resources_of(level: Level) -> list[ResourceRow]:
    device = {row.id: -1 if row.device is None else row.device for row in level.resources}
    return sorted(level.resources, key=lambda row: (row.rank, device[row.id]))


def _operation_name(view: TraceView, operation: Operation) -> str:
    on_device = operation.event >= 0 and bool(view.timeline.index.on_device[operation.event])
    return view.short_name(operation.event) if on_device else operation.name


def operation_columns(levels: Sequence[Level], view: TraceView, strings: Interner[str]) -> OperationColumns:
    """The operations of levels, one after the other; times since the start of their level."""
    operations = [operation for level in levels for operation in level.operations]
    costs = Costs.joined([level.costs for level in levels])
    starts = _starts(levels, [len(level) for level in levels])
    links = {
        name: np.concatenate([getattr(level, name) for level in levels]).tolist()
        for name in ("forward", "backward", "launch")
    }
    sides = ("device" if bound else "cpu" for bound in costs.bound_by_device.tolist())
    return filled(
        OperationColumns,
        costs,
        id=[operation.id for operation in operations],
        name=strings.codes(_operation_name(view, operation) for operation in operations).tolist(),
        stage=_stages(view, operations),
        kind=strings.codes(operation.kind for operation in operations).tolist(),
        resource=[operation.track for operation in operations],
        start_ns=_since(starts, costs.start_ns),
        end_ns=_since(starts, costs.end_ns),
        bound_by=strings.codes(sides).tolist(),
        opens=(costs.events > 1).astype(int).tolist(),
        event=[operation.event for operation in operations],
        module=[operation.module for operation in operations],
        **links,
        **_spreads(operations),
    )


def _stages(view: TraceView, operations: list[Operation]) -> list[int]:
    """The stage of each operation: of its first event; a step has none, a stage its own."""
    first = np.array([operation.rows[0] if len(operation.rows) else -1 for operation in operations], np.int64)
    of_events = values_at(view.trace.events["stage"], first).tolist()
    return [
        STAGES.index(operation.name)
        if operation.kind == "stage" and operation.name in STAGES
        else -1
        if operation.kind == "step"
        else stage
        for operation, stage in zip(operations, of_events, strict=True)
    ]


def _spreads(operations: list[Operation]) -> dict[str, list[Any]]:
    fields = {"count": 1, "least_ns": -1, "mean_ns": -1, "most_ns": -1, "slowest": ""}  # with those of one
    return {
        name: [getattr(operation.spread, name, alone) for operation in operations]
        for name, alone in fields.items()
    }


def device_columns(levels: Sequence[Level], view: TraceView, strings: Interner[str]) -> DeviceColumns:
    """The device side of the operations of levels, on the streams that these list.

    Rows of one level follow each other; `operation` counts from its level's first.
    """
    shown = [listed_parts(level) for level in levels]
    parts = [level.costs.parts for level in levels]
    columns = {
        field: np.concatenate([getattr(part, field)[keep] for part, keep in zip(parts, shown, strict=True)])
        for field in ("operation", "track", "event", "start_ns", "end_ns", "busy_ns")
    }
    sizes = [len(keep) for keep in shown]
    first = np.cumsum([0, *(len(level) for level in levels)])[:-1]
    operations = [one for level in levels for one in level.operations]
    of = (columns["operation"] + np.repeat(first, sizes)).tolist()
    starts = _starts(levels, sizes)
    lists = {field: column.tolist() for field, column in columns.items()}
    return DeviceColumns(
        operation=lists["operation"],
        resource=lists["track"],
        name=strings.codes(
            view.short_name(event) if event >= 0 else operations[operation].name
            for event, operation in zip(lists["event"], of, strict=True)
        ).tolist(),
        start_ns=_since(starts, columns["start_ns"]),
        end_ns=_since(starts, columns["end_ns"]),
        busy_ns=lists["busy_ns"],
    )


def listed_parts(level: Level) -> Ids:
    """The rows of a level's device side that are on streams that it lists."""
    of = level.costs.parts.track
    if not (level.path and level.hides):
        return np.arange(len(of))
    shown = [row.id for row in level.resources if row.shown and row.kind != "rank"]
    return np.flatnonzero((of[:, None] == np.array(shown, np.int64)).any(axis=1))


def _starts(levels: Sequence[Level], sizes: Sequence[int]) -> Ids:
    return np.repeat(np.array([level.start_ns for level in levels], np.int64), sizes)


def _since(starts: Ids, times: Ids) -> list[int]:
    """Times since the level's start; -1 stays -1, earlier times are cut at 0."""
    return np.where(times < 0, -1, np.maximum(times - starts, 0)).tolist()
