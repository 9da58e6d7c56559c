"""The answer about one operation: its costs, its instances, its launch, its source lines."""

import json
from functools import cache, partial
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import asdict

from stepscope.base.arrays import Ids, Rows, Times
from stepscope.faces.page.pane_answers import Selects, panes_of_each
from stepscope.faces.page.report_answers import KernelLaunch, kernel_launch
from stepscope.faces.page.requests import Query
from stepscope.faces.page.selection import Selection, known, longest_of_each, module_of, selected
from stepscope.faces.page.trace_view import TraceView
from stepscope.facts.annotate.range_names import MODULE_FRAME, MODULE_RANGE
from stepscope.facts.roofline.operator_work import Counted, key_of
from stepscope.facts.timeline import Operation
from stepscope.facts.timeline.chosen_events import events_inside
from stepscope.facts.timeline.operation import StepId
from stepscope.facts.timeline.operation_costs import Costs
from stepscope.facts.timeline.source_lines import SourcePlace, frames_around, module_places, nearest_frames
from stepscope.trace.arguments import parse
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

_MAX_ROWS = 50  # of a table; chosen: the page lists the longest, not all
_MAX_SHAPES, _MAX_PLACES = 100, 30
_SHAPES = Counted(("Input Dims",), 1)

# -- statistics of all instances like an operation, and the longest of them


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
    events, found, known = view.trace.events, dict[str, list[int]](), dict[Any, str]()
    texts = view.trace.arguments.texts(events["source"][longest])
    for event, text in zip(longest.tolist(), texts, strict=True):
        if b"Input Dims" in text:
            key = key_of(0, text, _SHAPES) or text  # most are alike
            if key not in known:
                known[key] = json.dumps(parse(text).get("Input Dims") or None)
            found.setdefault(known[key], []).append(int(events["duration_ns"][event]))
    found.pop("null", None)
    by_time = sorted(found.items(), key=lambda pair: -sum(pair[1]))[:_MAX_ROWS]
    return [Shapes(text, len(times), sum(times) // len(times)) for text, times in by_time]


# -- the operation itself


class EventLink(msgspec.Struct):
    """A raw event to go to."""

    event: int  # its id
    name: str  # shortened


class LaunchLink(EventLink):
    """The call that launched a piece of device work."""

    delay_ns: int  # from the start of the call to the start of the work


class WorkRow(EventLink):
    """A piece of device work."""

    full_name: str  # as recorded
    stream: int | None
    duration_ns: int
    launch: int  # id of the call that launched it
    delay_ns: int  # from the start of that call to its start


class DeviceWork(msgspec.Struct):
    """The device work that an operation launched."""

    count: int
    rows: list[WorkRow]  # the longest pieces, at most 50


def launch_of(view: TraceView, event: int) -> LaunchLink | None:
    index = view.timeline.index
    if event < 0 or index.launch[event] < 0:
        return None
    call = int(index.launch[event])
    return LaunchLink(call, view.short_name(call), int(index.start[event] - index.start[call]))


def device_work_of_each(
    view: TraceView, of: Ids, raw: Rows, events: Ids, most: int = _MAX_ROWS
) -> list[DeviceWork]:
    """The device work that each of some operations launched, at most `most` pieces, the longest first.

    Args:
        of: the operation of each raw event, ascending.
        raw: raw events of the operations, ascending for each.
        events: the event that each operation is, -1 for none; device work itself launches nothing.
    """
    index = view.timeline.index
    launched = index.on_device[raw] & ~((events >= 0) & index.on_device[events])[of]
    of, work = of[launched], raw[launched]
    count = np.bincount(of, minlength=len(events)).tolist()
    longest = longest_of_each(of, index.duration[work], most)
    rows: dict[int, WorkRow] = {}
    work_of = [DeviceWork(number, []) for number in count]
    for operation, event in zip(of[longest].tolist(), work[longest].tolist(), strict=True):
        if event not in rows:
            rows[event] = _work_row(view, event)
        work_of[operation].rows.append(rows[event])
    return work_of


def _work_row(view: TraceView, event: int) -> WorkRow:
    index, tracks = view.timeline.index, view.trace["tracks"]
    call, track = int(index.launch[event]), int(index.track[event])
    return WorkRow(
        event,
        view.short_name(event),
        full_name=view.trace.events.text("name")[event] or "",
        stream=known(tracks["stream"], track),
        duration_ns=int(index.duration[event]),
        launch=call,
        delay_ns=int(index.start[event] - index.start[call]),
    )


def kernels_of_each(view: TraceView, of: Ids, raw: Rows, count: int) -> list[KernelLaunch | None]:
    """Launch configuration of the kernel that each operation is, or the only one it launched."""
    is_kernel = view.timeline.index.on_device[raw]
    is_kernel[is_kernel] = view.trace.events.text("category").take(raw[is_kernel]).mask("kernel")
    of, kernels = of[is_kernel], raw[is_kernel]
    only = np.bincount(of, minlength=count)[of] == 1
    distinct, which = np.unique(kernels[only], return_inverse=True)
    launches = [kernel_launch(arguments) for arguments in view.trace.arguments_of(distinct)]
    result: list[KernelLaunch | None] = [None] * count
    for operation, kernel in zip(of[only].tolist(), which.tolist(), strict=True):
        result[operation] = launches[kernel]
    return result


class Track(msgspec.Struct):
    """A thread or a stream."""

    name: str
    stream: int | None


class ModuleLink(msgspec.Struct):
    """A module."""

    id: int  # row of the table `modules`
    path: str  # such as `layer1.0.conv1`
    class_: str = msgspec.field(name="class")


class Details(msgspec.Struct):
    """One operation; null if something is not recorded or does not apply."""

    path: str  # of the operation
    level: str  # path of the level that lists this operation
    name: str  # shortened
    full_name: str  # as recorded
    kind: str  # step, stage, module, event, section, series or repeat
    event: int | None  # id of its raw event, if it is exactly one
    category: str | None  # of this event
    step: int
    rank: int
    stage: str | None
    track: Track | None
    module: ModuleLink | None
    start_ns: int | None  # since the trace's start
    cpu_ns: int  # CPU time inside it
    self_ns: int  # CPU time inside it and in none of its children
    device_ns: int  # device busy time, a union of intervals
    recompute_ns: int  # CPU time that repeats forward work
    bound_by: str  # cpu or device
    events: int  # number of raw events inside it
    arguments: dict[str, Any]  # of its event, as recorded
    instances: Instances | None  # all operations like it
    launch: LaunchLink | None  # the call that launched it, for device work
    device_work: DeviceWork  # what it launched, for all else
    kernel: KernelLaunch | None  # launch configuration of the only kernel
    forward: EventLink | None  # its partner in forward
    backward: EventLink | None  # its partner in backward
    # lines of its modules from the innermost outwards, then Python frames around it; a backward operation
    # without frames has those of its forward partner
    source: list[SourcePlace]
    selects: Selects  # what the other panes mark


def details(view: TraceView, query: Query) -> Details:
    """All that is known of an operation.

    Query:
        path: of the operation.
    """
    path = "/".join(filter(None, query.text("path").split("/")))
    facts = {name: column[0] for name, column in detail_columns(view, selected(view, path)).items()}
    return Details(path=path, level=path.rpartition("/")[0], **facts)


def detail_columns(view: TraceView, chosen: Selection, most: int = _MAX_ROWS) -> dict[str, list[Any]]:
    """The fields of `Details` for many operations at once, but `path` and `level`."""
    event = np.array([id.event for id in chosen.operations], np.int64)
    of, raw = events_inside(view.timeline.index, chosen.operations)
    count = len(event)
    return {
        **_identity(view, chosen, event),
        **_costs(chosen.costs),
        "arguments": _arguments(view, event),
        "instances": [
            instances_of(view, path, operation)
            for path, operation in zip(chosen.paths, chosen.operations, strict=True)
        ],
        "launch": [launch_of(view, id) for id in event.tolist()],
        "device_work": device_work_of_each(view, of, raw, event, most),
        "kernel": kernels_of_each(view, of, raw, count),
        "forward": _links(view, chosen.forward),
        "backward": _links(view, chosen.backward),
        "source": _sources(view, chosen),
        "selects": panes_of_each(view, of, raw, count, most),
    }


def _identity(view: TraceView, chosen: Selection, event: Ids) -> dict[str, list[Any]]:
    operations, events = chosen.operations, view.trace.events
    names, categories = events.text("name"), events.text("category")
    recorded = [None if operation < 0 else operation for operation in event.tolist()]
    steps = [StepId.of(path) for path in chosen.paths]
    tracks, modules = cache(partial(_track, view)), cache(partial(_module, view))
    return {
        "name": [operation.name for operation in operations],
        "full_name": [
            (None if event is None else names[event]) or operation.name
            for operation, event in zip(operations, recorded, strict=True)
        ],
        "kind": [operation.kind for operation in operations],
        "event": recorded,
        "category": [None if operation is None else categories[operation] for operation in recorded],
        "step": [id.step for id in steps],
        "rank": [id.rank for id in steps],
        "stage": [_stage(view, operation) for operation in operations],
        "track": [tracks(operation.track) for operation in operations],
        "module": [modules(module_of(view, operation)) for operation in operations],
    }


def _stage(view: TraceView, operation: Operation) -> str | None:
    if operation.kind == "stage":
        return operation.name
    if operation.kind == "step" or not len(operation.rows):
        return None
    return view.trace.events.text("stage")[operation.rows[0]]


def _track(view: TraceView, track: int) -> Track | None:
    if track < 0:
        return None
    table = view.trace["tracks"]
    return Track(table.text("name")[track] or "", known(table["stream"], track))


def _module(view: TraceView, module: int) -> ModuleLink | None:
    if module < 0:
        return None
    table = view.trace["modules"]
    return ModuleLink(module, table.text("path")[module] or "", table.text("class")[module] or "")


def _costs(costs: Costs) -> dict[str, list[Any]]:
    start = np.where(costs.start_ns >= 0, costs.start_ns, costs.device_start_ns)
    times = ("cpu_ns", "self_ns", "device_ns", "recompute_ns")
    return {
        "start_ns": [None if time < 0 else time for time in start.tolist()],
        **{name: getattr(costs, name).tolist() for name in times},
        "bound_by": ["device" if bound else "cpu" for bound in costs.bound_by_device.tolist()],
        "events": costs.events.tolist(),
    }


def _arguments(view: TraceView, event: Ids) -> list[dict[str, Any]]:
    arguments = iter(view.trace.arguments_of(event[event >= 0]))
    return [next(arguments) if recorded else {} for recorded in (event >= 0).tolist()]


def _links(view: TraceView, events: Ids) -> list[EventLink | None]:
    return [EventLink(event, view.short_name(event)) if event >= 0 else None for event in events.tolist()]


def _sources(view: TraceView, chosen: Selection) -> list[list[SourcePlace]]:
    """Calls and classes of modules, then recorded frames, each from the innermost outwards."""
    index, operations = view.timeline.index, chosen.operations
    first = np.array([operation.rows[0] if len(operation.rows) else -1 for operation in operations], np.int64)
    frames = np.where(first >= 0, nearest_frames(index, first), -1)
    # Autograd has no frames of its own, so those of its forward partner count.
    partner = np.where(chosen.forward >= 0, nearest_frames(index, chosen.forward), -1)
    frames = np.where(frames >= 0, frames, partner)
    of_module, of_frame = cache(partial(_module_places, view)), partial(frames_around, view.timeline.index)
    places = cache(
        lambda module, frame: [*of_module(module), *(of_frame(frame) if frame >= 0 else ())][:_MAX_PLACES]
    )
    return [
        places(max(module_of(view, operation), operation.context), frame)
        if operation.kind not in ("step", "stage") and len(operation.rows)
        else []
        for operation, frame in zip(operations, frames.tolist(), strict=True)
    ]


def _module_places(view: TraceView, module: int) -> list[SourcePlace]:
    places, parents = list[SourcePlace](), view.trace["modules"]["parent"]
    while module >= 0:
        places += module_places(view.timeline.index, module)
        module = int(parents[module])
    return places
