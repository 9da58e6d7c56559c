"""The answer about one operation: its costs, its instances, its launch, its source lines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from stepscope.serve.instance_answers import Instances, instances_of
from stepscope.serve.launch_answers import (
    DeviceWork,
    EventLink,
    LaunchLink,
    device_work_of,
    kernel_of,
    launch_of,
    partner,
)
from stepscope.serve.pane_answers import Line, Selects, panes_of
from stepscope.serve.request_parameters import Query
from stepscope.serve.selection import Selection, known, module_of, selection_of, step_of
from stepscope.serve.table_answers import KernelLaunch
from stepscope.serve.trace_view import TraceView
from stepscope.timeline import Operation
from stepscope.timeline.known_lines import Place, frames_around, module_places
from stepscope.timeline.operation_costs import Costs

_MAX_PLACES = 30


class Track(msgspec.Struct):
    """A thread or a stream.

    Attributes:
        id: number of the track.
        kind: `cpu`, `device` or `communication`.
    """

    id: int
    kind: str
    name: str
    device: int | None
    stream: int | None


class ModuleLink(msgspec.Struct):
    """A module.

    Attributes:
        id: row of the table `modules`.
        path: such as `layer1.0.conv1`.
    """

    id: int
    path: str
    class_: str = msgspec.field(name="class")


class SourcePlace(Line):
    """A source line of an operation.

    Attributes:
        what: `call` of a module, `class` of a module, or a recorded Python `frame`.
        name: of the module, the class or the function.
    """

    what: str
    name: str


class Details(msgspec.Struct):
    """One operation; null if something is not recorded or does not apply.

    Attributes:
        path: of the operation that it is or lies in.
        level: path of the level that lists this operation.
        name: shortened.
        full_name: as recorded.
        kind: step, stage, module, event, section, series or repeat.
        event: id of its raw event, if it is exactly one.
        category: of this event.
        start_ns: since the trace's start.
        cpu_ns: CPU time inside it.
        self_ns: CPU time inside it and in none of its children.
        device_ns: device busy time, a union of intervals.
        recompute_ns: CPU time that repeats forward work.
        bound_by: cpu or device.
        events: number of raw events inside it.
        arguments: of its event, as recorded.
        instances: all operations like it.
        launch: the call that launched it, for device work.
        device_work: what it launched, for all else.
        kernel: launch configuration of the only kernel.
        forward: its partner in forward.
        backward: its partner in backward.
        source: lines of its modules from the innermost outwards, then Python frames around it; a
            backward operation without frames has those of its forward partner.
        selects: what the other panes mark.
    """

    path: str
    level: str
    name: str
    full_name: str
    kind: str
    event: int | None
    category: str | None
    step: int | None
    rank: int
    stage: str | None
    track: Track | None
    module: ModuleLink | None
    start_ns: int | None
    cpu_ns: int
    self_ns: int
    device_ns: int
    device_start_ns: int | None
    device_end_ns: int | None
    recompute_ns: int
    bound_by: str
    events: int
    arguments: dict[str, Any]
    instances: Instances | None
    launch: LaunchLink | None
    device_work: DeviceWork
    kernel: KernelLaunch | None
    forward: EventLink | None
    backward: EventLink | None
    source: list[SourcePlace]
    selects: Selects


def details(view: TraceView, query: Query) -> Details:
    """All that is known of an operation.

    Query:
        path: of the operation.
        event: id of a raw event, instead of `path`.
    """
    selection = selection_of(view, query)
    return Details(
        path=selection.path,
        level=selection.path.rpartition("/")[0],
        **_identity(view, selection),
        **_costs(selection.costs),
        arguments=_arguments(view, selection.event),
        instances=instances_of(view, selection),
        launch=launch_of(view, selection.event),
        device_work=device_work_of(view, selection),
        kernel=kernel_of(view, selection),
        forward=partner(view, selection.forward),
        backward=partner(view, selection.backward),
        source=[SourcePlace(**vars(place)) for place in _places(view, selection)],
        selects=panes_of(view, selection.raw),
    )


def _identity(view: TraceView, selection: Selection) -> dict[str, Any]:
    operation, events, event = selection.operation, view.trace.events, selection.event
    first = int(operation.rows[0]) if len(operation.rows) else None
    recorded = None if event is None else events.text("name")[event]
    step, rank = step_of(view, selection)
    return {
        "name": operation.name,
        "full_name": recorded or operation.name,
        "kind": operation.kind,
        "event": event,
        "category": None if event is None else events.text("category")[event],
        "step": step,
        "rank": rank,
        "stage": _stage(view, operation, first),
        "track": _track(view, operation.track),
        "module": _module(view, module_of(view, operation)),
    }


def _stage(view: TraceView, operation: Operation, first: int | None) -> str | None:
    if operation.kind == "stage":
        return operation.name
    if operation.kind == "step" or first is None:
        return None
    return view.trace.events.text("stage")[first]


def _track(view: TraceView, track: int) -> Track | None:
    if track < 0:
        return None
    table = view.trace["tracks"]
    return Track(
        id=track,
        kind=table.text("kind")[track] or "",
        name=table.text("name")[track] or "",
        device=known(table["device"], track),
        stream=known(table["stream"], track),
    )


def _module(view: TraceView, module: int) -> ModuleLink | None:
    if module < 0:
        return None
    table = view.trace["modules"]
    return ModuleLink(module, table.text("path")[module] or "", table.text("class")[module] or "")


def _costs(costs: Costs) -> dict[str, Any]:
    start, device_start = known(costs.start_ns, 0), known(costs.device_start_ns, 0)
    return {
        "start_ns": device_start if start is None else start,
        "cpu_ns": int(costs.cpu_ns[0]),
        "self_ns": int(costs.self_ns[0]),
        "device_ns": int(costs.device_ns[0]),
        "device_start_ns": device_start,
        "device_end_ns": known(costs.device_end_ns, 0),
        "recompute_ns": int(costs.recompute_ns[0]),
        "bound_by": "device" if costs.bound_by_device[0] else "cpu",
        "events": int(costs.events[0]),
    }


def _arguments(view: TraceView, event: int | None) -> dict[str, Any]:
    return {} if event is None else view.trace.event_arguments(event)


def _places(view: TraceView, selection: Selection) -> Iterable[Place]:
    """Calls and classes of modules, then recorded frames, each from the innermost outwards."""
    operation, index = selection.operation, view.timeline.index
    if operation.kind in ("step", "stage") or not len(operation.rows):
        return []
    first = int(operation.rows[0])
    frames = frames_around(index, first)
    if not frames and selection.forward >= 0:
        frames = frames_around(index, selection.forward)  # autograd has no frames of its own
    found, module = [], max(module_of(view, operation), operation.context)
    parents = view.trace["modules"]["parent"]
    while module >= 0:
        found += module_places(index, module)
        module = int(parents[module])
    return [*found, *frames][:_MAX_PLACES]
