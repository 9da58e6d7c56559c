"""From a trace to the dependency graph of consecutive steps."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.base.arrays import Array, Codes8, Ids, Mask, Times
from stepscope.graph.added_launches import with_unlisted_work
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
from stepscope.trace.columns import gathered
from stepscope.trace.row_order import begins_run, inverse, stable_order
from stepscope.trace.schema import CATEGORIES
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
    order = np.lexsort((start, track)) if cpu.is_missing else stable_order(track)
    place, track, start = inverse(order), track[order], start[order]
    begins = begins_run(track)
    tracks, thread = track[begins], np.cumsum(begins, dtype=np.int32) - np.int32(1)
    columns = {name: gathered(np.concatenate([host[name], device[name]]), order) for name in host}
    if cpu.is_missing:
        columns["gap_ns"] = _gaps_with_marks(columns, track == cpu.main, start)
    tasks = task_table(trace.events, thread, columns)
    links = _links(trace, cpu, work, delays, place)
    graph = Graph(tasks, links, _threads(trace, tracks, cpu.main), trace, window)
    return with_unlisted_work(graph)


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
