"""From a trace to the dependency graph of consecutive steps."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepscope.base.arrays import Array, Codes8, Ids, Mask, Times
from stepscope.graph.cpu_side import CpuSide, cut_cpu
from stepscope.graph.device_delays import Delays, find_delays
from stepscope.graph.device_tasks import WindowWork, find_work
from stepscope.graph.graph import Graph, Window, find_window
from stepscope.graph.graph_schema import (
    COMMUNICATION,
    DATA,
    EARLIER,
    EDGE_KINDS,
    HANDOVER,
    LAUNCH,
    LINKS,
    NO_STEP,
    SYNC,
    TASKS,
    THREADS,
)
from stepscope.graph.primitives import add_links, insert, numbers_after
from stepscope.trace.columns import gathered
from stepscope.trace.row_order import begins_run, ends_run, inverse, stable_order
from stepscope.trace.schema import CATEGORIES
from stepscope.trace.sets import mask_of
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

Part = tuple[Ids, Ids, "NDArray[np.int8] | int", "Times | int"]


def build_graph(trace: Trace, rank: int | None = None, steps: tuple[int, int] | None = None) -> Graph:
    """The dependency graph of some consecutive steps of one rank.

    Args:
        trace: an annotated trace.
        rank: a rank; by default the first.
        steps: the first and the last step; by default the longest run of consecutive steps.

    Returns:
        A graph whose simulation reproduces the measured steps.

    Raises:
        TraceError: if there are no such steps.

    Source: DAYDREAM section 4.2.
    """
    window = find_window(trace, rank, steps)
    work = find_work(trace, window)
    cpu = cut_cpu(trace, window, work)
    delays = find_delays(trace, cpu, work, window)
    host, device = _host_tasks(cpu, window), _device_tasks(trace, work, delays, window)
    track = np.concatenate([cpu.pieces.track, work.track])
    start = np.concatenate([cpu.pieces.start_ns, work.start_ns])
    order = np.lexsort((start, track)) if cpu.on_stream else stable_order(track)
    place, track, start = inverse(order), track[order], start[order]
    begins = begins_run(track)
    tracks, thread = track[begins], np.cumsum(begins, dtype=np.int32) - np.int32(1)
    columns = {name: gathered(np.concatenate([host[name], device[name]]), order) for name in host}
    if cpu.on_stream:
        columns["gap_ns"] = _gaps_with_marks(columns, track == cpu.main, start)
    tasks = task_table(trace.events, thread, columns)
    links = _links(trace, cpu, work, delays, place)
    return with_unlisted_work(Graph(tasks, links, _threads(trace, tracks, cpu.main), trace, window))


def _gaps_with_marks(columns: dict[str, Any], on_main: Mask, start: Times) -> Times:
    """Gaps where steps are marked on a stream: there they tile its time together with the work."""
    tasks = np.flatnonzero(on_main)
    gaps: Times = columns["gap_ns"].copy()
    gaps[tasks[:-1]] = np.diff(start[tasks]) - columns["duration_ns"][tasks[:-1]]
    return np.maximum(gaps, 0)


def _host_tasks(cpu: CpuSide, window: Window) -> dict[str, Any]:
    pieces = cpu.pieces
    duration, gap = cpu.working_times()
    since = pieces.start_ns - window.starts_ns[0]
    mark = np.zeros(len(pieces.track), np.int8)
    mark[cpu.marks] = 1
    index = np.searchsorted(window.starts_ns[:-1], pieces.start_ns, side="right") - 1
    return {
        "duration_ns": duration,
        "gap_ns": gap,
        "earliest_ns": np.where(cpu.independent() | cpu.paced_by_earlier_work(), since, 0),
        "event": pieces.owner.astype(np.int32),
        "mark": mark,
        "step": np.array(window.steps, np.int32)[np.maximum(index, 0)],
    }


def _device_tasks(trace: Trace, work: WindowWork, delays: Delays, window: Window) -> dict[str, Any]:
    step, start = (trace.events[name][work.event] for name in ("step", "start_ns"))
    queued = (step == NO_STEP) & (start < window.begin_ns) & window.waits_for_earlier_work
    return {
        "duration_ns": work.end_ns - work.start_ns,
        "gap_ns": delays.gap_ns,
        "earliest_ns": delays.earliest_ns,
        "event": work.event.astype(np.int32),
        "mark": np.zeros(len(work.event), np.int8),
        "step": np.where(queued, EARLIER, step),
    }


def _links(trace: Trace, cpu: CpuSide, work: WindowWork, delays: Delays, place: Ids) -> Table:
    """All links; `place` is the position of the CPU's tasks, then the devices', in the graph."""
    parts = [*_device_links(trace, cpu, work, delays), *_handovers(cpu), *_data_links(cpu)]
    source, target, kind, lag = (
        np.concatenate([np.broadcast_to(part[n], len(part[0])) for part in parts]) for n in range(4)
    )
    columns: dict[str, Any] = {
        "source": place[source],
        "target": place[target],
        "kind": Text(kind.astype(np.int8), EDGE_KINDS),
        "lag_ns": lag,
    }
    return Table(LINKS, columns)


def _device_links(trace: Trace, cpu: CpuSide, work: WindowWork, delays: Delays) -> list[Part]:
    first = len(cpu.pieces.track)
    communicates = trace.events.text("category").mask("communication")[work.event]
    launched = np.flatnonzero(delays.call >= 0)
    seen = cpu.waits.work >= 0
    returns = cpu.returns[np.searchsorted(cpu.calls, cpu.waits.call[seen])]
    awaited, source, target = cpu.waits.work[seen], delays.source, delays.target
    wait_kind = np.where(communicates[awaited], COMMUNICATION, SYNC)
    pair_kind = np.where(communicates[source] | communicates[target], COMMUNICATION, SYNC)
    lag = delays.launch_lag_ns[launched]
    return [
        (delays.call[launched], first + launched, LAUNCH, lag),
        (first + awaited, returns, wait_kind, cpu.waits.until_ns[seen] - work.end_ns[awaited]),
        (first + source, first + target, pair_kind, delays.wait_lag_ns),
    ]


def _handovers(cpu: CpuSide) -> list[Part]:
    pieces, joined = cpu.pieces, cpu.bursts.end_ns[cpu.joined]
    end = pieces.start_ns + pieces.duration_ns
    last = cpu.last_tasks(cpu.bursts.track[cpu.joined], joined)
    return [
        (cpu.forks, cpu.begun, HANDOVER, -pieces.duration_ns[cpu.forks]),
        (last, cpu.joins, HANDOVER, joined - end[last]),
    ]


def _data_links(cpu: CpuSide) -> list[Part]:
    needs, first, track = cpu.needs, cpu.pieces.of_event, cpu.pieces.track
    target = first[needs.target]
    target[needs.since_ns >= 0] = cpu.resumes
    last = cpu.last_tasks(needs.by, needs.until_ns)
    here = np.append(track, -1)[np.minimum(target, len(track))] == needs.track
    return [(last[here], target[here], DATA, 0)]


def _threads(trace: Trace, tracks: Ids, main: int) -> Table:
    table = trace["tracks"]
    columns: dict[str, Any] = {
        "kind": table.text("kind").take(tracks),
        "name": table.text("name").take(tracks),
        "track": tracks,
        "device": table["device"][tracks],
        "ordered": np.ones(len(tracks)),
        "main": tracks == main,
        "rank": table["rank"][tracks],
    }
    return Table(THREADS, columns)


_OTHER = CATEGORIES.index("other")


def task_table(events: Table, thread: Ids, columns: dict[str, Any]) -> Table:
    """Tasks with the facts of their events; marks are named by their step."""
    event = columns["event"]
    facts: dict[str, Any] = {
        name: _of_event(events, name, event) for name in ("kind", "module", "bytes", "stage")
    }
    facts["stage"] = _fill_back(facts["stage"], thread)
    category = _of_event(events, "category", event)
    facts["category"] = np.where(category >= 0, category, _OTHER)
    for name in ("kind", "stage", "category"):
        facts[name] = Text(facts[name].astype(np.int8), TASKS.column(name).values)
    facts["name"] = _names(events.text("name"), event, columns["mark"], columns["step"])
    return Table(TASKS, {"thread": thread, **columns, **facts})


def _of_event(events: Table, name: str, event: Ids) -> Array:
    values = events[name]
    return gathered(np.append(values, values.dtype.type(-1)), event)


def _fill_back(stage: Array, thread: Ids) -> Array:
    """Give tasks without an event the stage of the thread's next task that has one."""
    known, missing = np.flatnonzero(stage >= 0), np.flatnonzero(stage < 0)
    following = np.append(known, -1)[np.searchsorted(known, missing)]
    same = (following >= 0) & (thread[following] == thread[missing])
    filled = stage.copy()
    filled[missing[same]] = stage[following[same]]
    return filled


def _names(names: Text, event: Ids, mark: Codes8, step: Ids) -> Text:
    """Names of events, `step 5` for marks, empty for handovers between threads."""
    numbers = np.unique(step[mark > 0])
    values = [*names.values, "", *(f"step {number}" for number in numbers)]
    own = len(names.values) + 1 + np.searchsorted(numbers, step)
    codes = gathered(np.append(names.codes, np.int32(len(names.values))), event)
    return Text(np.where(mark > 0, own, codes).astype(np.int32), values)


# -- new device work: kernels with the calls that launch them, and work that was not listed
# A launch of a CUDA graph starts many kernels, of which a file may list few or none; the stream then
# seems idle without a reason. The time between two listed operations is taken to be the graph's work
# if one of them belongs to the graph, or if the graph was launched between their launches.


def insert_device_work(
    graph: Graph,
    calls: ArrayLike,
    works: ArrayLike,
    names: Sequence[str],
    duration_ns: ArrayLike,
    **columns: Any,
) -> tuple[Graph, Ids]:
    """The graph with new kernels after device tasks, and their launches after CPU tasks.

    A launch has the median duration and latency of the graph's launches. CPU calls that waited for
    a kernel wait for the new kernel after it. The launches come after the CPU tasks `calls`, the kernels
    after the device tasks `works`, shape (n,) each; `columns` are further ones of both. Returns the
    graph, and the ids of the new kernels in it.
    """
    calls, works = np.atleast_1d(calls), np.atleast_1d(works)
    count = len(works)
    call_ns, lag_ns = typical_launch(graph)
    times = np.concatenate([np.full(count, call_ns), np.broadcast_to(duration_ns, count)])
    labels = ["launch"] * count + list(names)
    graph, new = insert(graph, np.concatenate([calls, works]), labels, duration_ns=times, **columns)
    call, work = new[:count], new[count:]
    return add_links(_waited_for(graph, work), call, work, "launch", lag_ns), work


def typical_launch(graph: Graph) -> tuple[int, int]:
    """The median duration of a launch call, and the median time from its start to its work, ns.

    Both are 0 without launches.
    """
    if not len(graph.launches):
        return 0, 0
    length = graph.tasks["duration_ns"][graph.launches["source"]]
    return int(np.median(length)), int(np.median(graph.launches["lag_ns"]))


def _waited_for(graph: Graph, work: Ids) -> Graph:
    """Make CPU calls that waited for the predecessor of a new task wait for the new task.

    After several new tasks in a row, they wait for the last.
    """
    new = mask_of(work, len(graph) + 1)
    last = np.maximum.accumulate(np.where(new[:-1], -1, np.arange(len(graph))))
    successor = np.arange(len(graph))
    ends = work[~new[work + 1]]
    successor[last[ends]] = ends
    links = graph.links
    waits = (links["kind"] == SYNC) & ~graph.on_device[links["target"]]
    moved = np.where(waits, successor[links["source"]], links["source"])
    return replace(graph, links=links.with_columns(source=moved))


NAME = "work of a CUDA graph, not listed"
_GRAPH_LAUNCH = re.compile(r"^(cuda|hip|cu)GraphLaunch")


def with_unlisted_work(graph: Graph) -> Graph:
    """The graph with tasks for work of graph launches that is not listed.

    Such a task lasts from its earliest start, after its launch and the stream's previous work, to
    the next work on the stream, if that is longer than a launch. The replay is unchanged.
    """
    named = graph.tasks.text("name").where(lambda name: bool(_GRAPH_LAUNCH.match(name)))
    launches = np.flatnonzero(named & ~graph.on_device)
    calls = np.sort(launches[np.unique(graph.tasks["event"][launches], return_index=True)[1]])
    if not len(calls):
        return graph
    gap = graph.tasks["gap_ns"].copy()
    before = np.flatnonzero(graph.on_device & (gap > 0) & ~ends_run(graph.tasks["thread"]))
    call = _launch_between(graph, calls, before)
    before, call = before[call >= 0], call[call >= 0]
    _, lag = typical_launch(graph)
    start, end = graph.start_ns, graph.start_ns + graph.tasks["duration_ns"]
    begin = np.maximum(end[before], start[call] + lag)
    length = start[np.minimum(before + 1, len(graph) - 1)] - begin
    lasts = length > lag
    if not lasts.any():
        return graph
    before, call = before[lasts], call[lasts]
    gap[before] = begin[lasts] - end[before]
    facts: dict[str, Any] = {"duration_ns": length[lasts], "category": "kernel", "kind": "other"}
    graph, new = insert(graph.with_tasks(gap_ns=gap), before, [NAME] * len(before), **facts)
    return add_links(graph, numbers_after(len(graph), new)[call], new, "launch", lag)


def _launch_between(graph: Graph, calls: Ids, before: Ids) -> Ids:
    """For each gap, the first graph launch between the launches of its two sides, or -1."""
    left, right = graph.launched_by[before], graph.launched_by[before + 1]
    left = np.where(left < 0, right, left)
    first = calls[np.minimum(np.searchsorted(calls, left), len(calls) - 1)]
    thread = graph.tasks["thread"]
    between = (left >= 0) & (first >= left) & (first <= right) & (thread[left] == thread[right])
    return np.where(between, first, -1)
