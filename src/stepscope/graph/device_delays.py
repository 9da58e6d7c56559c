"""The cause of each device operation's delay: its launch, its stream, or another stream.

The measured delay is kept on that one dependency, so that the replay is exact; the others get typical delays.
A change that shortens the cause then moves the work until the next dependency limits it.
"""

import re
from dataclasses import dataclass

import numpy as np

from stepscope.base.arrays import Ids, Mask, Times
from stepscope.graph.cpu_side import CpuSide
from stepscope.graph.data_flow import data_pairs, last_needs
from stepscope.graph.device_tasks import (
    UNKNOWN,
    WindowWork,
    launch_latency,
    of_same_rank,
    previous_ends,
    sync_events,
)
from stepscope.graph.graph import Window
from stepscope.trace.nesting import last_started
from stepscope.trace.trace import Trace


@dataclass(frozen=True)
class Delays:
    """Delays of each row of `Work`, and of each pair of rows where one waits for the other."""

    call: Ids  # the CPU task that launched it, or -1
    launch_lag_ns: Times  # minimum time from the start of that task to the start of the work
    gap_ns: Times  # minimum time from its end to the start of the next work on its stream
    # the start of work with an unknown cause, and of work that waited for work from before the window
    earliest_ns: Times
    source: Ids  # pairs of rows on two streams
    target: Ids  # pairs of rows on two streams
    wait_lag_ns: Times  # for each pair, the minimum time from the source's end to the target's start


def find_delays(trace: Trace, cpu: CpuSide, work: WindowWork, window: Window) -> Delays:
    source, target = find_stream_waits(trace, cpu.rows, work)
    latency, previous = launch_latency(work, source, target), previous_ends(work)
    call, called = _calls(cpu, work, latency)
    known = call >= 0
    delay = np.where(known, np.maximum(work.start_ns - called, 0), 0)
    launched = np.where(known, called + np.minimum(latency, delay), -1)
    awaited = np.full(len(work.event), -1, np.int64)
    np.maximum.at(awaited, target, work.end_ns[source])
    by_launch = (launched > previous) & (launched > awaited)
    by_stream = (previous >= launched) & (previous >= awaited) & (previous >= 0)
    gap = np.where(by_stream, work.start_ns - previous, 0)
    by_wait = (work.end_ns[source] == awaited[target]) & ~(by_launch | by_stream)[target]
    wait_lag = work.start_ns[target] - work.end_ns[source]
    alone = ~known & work.first & (awaited < 0)
    behind = by_launch & work.first & (called < window.begin_ns) & (delay > latency)
    by_launch &= ~behind
    found = Delays(
        call=call,
        launch_lag_ns=np.where(by_launch, delay, np.minimum(latency, delay)),
        gap_ns=np.append(gap[1:], 0)[: len(gap)],
        earliest_ns=np.where(alone | behind, work.start_ns - window.starts_ns[0], 0),
        source=source,
        target=target,
        wait_lag_ns=np.where(by_wait, wait_lag, np.minimum(wait_lag, 0)),
    )
    return _paced_by_stream(work, found, cpu.main) if cpu.on_stream else found


def _paced_by_stream(work: WindowWork, delays: Delays, main: int) -> Delays:
    """Delays where steps are marked on a stream: each stream follows the work of the main one.

    Little is known of the CPU, and on the main stream its delays stay. Other work starts as long
    after the latest work there that began before it, as it was measured to.
    """
    of_main, others = np.flatnonzero(work.track == main), np.flatnonzero(work.track != main)
    at = np.searchsorted(work.start_ns[of_main], work.start_ns[others], side="right") - 1
    target, source = others[at >= 0], of_main[at[at >= 0]]
    gap = delays.gap_ns.copy()
    gap[target[~work.first[target]] - 1] = 0
    lag = work.start_ns[target] - work.end_ns[source]
    none, zero = np.full(len(work.event), -1, np.int64), np.zeros(len(work.event), np.int64)
    return Delays(none, zero, gap, delays.earliest_ns, source, target, lag)


def _calls(cpu: CpuSide, work: WindowWork, latency: int) -> tuple[Ids, Times]:
    """The CPU task that launched each device operation, or -1, and when that task began.

    Recorders lose launches. If work without a known launch starts on an idle stream, its launch is
    taken to be the task of the loop's or autograd's thread just before it.
    """
    pieces = cpu.pieces
    task = np.where(work.call >= 0, pieces.of_event[work.call], -1)
    assumed_ns = work.start_ns - latency
    callers = np.flatnonzero(np.isin(pieces.track, [cpu.main, *cpu.bursts.track]))
    callers = callers[np.argsort(pieces.start_ns[callers], kind="stable")]
    index = np.searchsorted(pieces.start_ns[callers], assumed_ns, side="right") - 1
    lost = (work.called_ns == UNKNOWN) & (previous_ends(work) < assumed_ns) & (index >= 0)
    task[lost] = callers[index[lost]]
    return task, np.where(task >= 0, pieces.start_ns[task], work.called_ns)


Pairs = set[tuple[int, int]]
_SOON_NS = 20_000  # chosen: work that waited begins within this of what it waited for
_LAST_PART = 0.1  # of a kernel, in which it leaves room for another
_NEVER = 1 << 62  # ns: its negative is before every event
_LITTLE = 0.5  # of the time that work has waited
_WAIT_CALL = re.compile(r"^(cuda|hip|cu)StreamWaitEvent")


def find_stream_waits(trace: Trace, rows: Ids, work: WindowWork) -> tuple[Ids, Ids]:
    """Pairs of rows of `Work`: the awaited work, and the work that waits.

    `cuda_sync` events name the stream and the record. Without them, a wait call links the thread's
    next launch to the last work launched before it on every other stream of the device, unless that
    work ended only after the launched work had begun; where an execution trace says what it needs,
    the other streams that it needs nothing of are left out. In addition, work that began late, right
    after work on another stream ended, is taken to have waited for it, unless that explains it.
    """
    pairs = _recorded(trace, rows, work)
    if pairs is None:
        needed = _by_data(trace, work)
        streams = {(int(work.track[source]), target) for source, target in needed}
        told = {target for _, target in needed}
        guessed = _by_order(trace, rows, work)
        pairs = {pair for pair in guessed if pair[1] not in told or (work.track[pair[0]], pair[1]) in streams}
        pairs |= needed
        source, target = _columns(pairs)
        awaited = np.full(len(work.event), -_NEVER)
        np.maximum.at(awaited, target, work.end_ns[source])
        explained = work.start_ns - awaited <= _SOON_NS
        by_data = explained & np.isin(np.arange(len(explained)), [*told])
        pairs |= _by_time(trace, work, launch_latency(work, source, target), explained, by_data)
    return _columns(pairs)


def _columns(pairs: Pairs) -> tuple[Ids, Ids]:
    rows = sorted(pairs)
    source, target = (np.array([pair[n] for pair in rows], np.int64) for n in (0, 1))
    return source, target


def _recorded(trace: Trace, rows: Ids, work: WindowWork) -> Pairs | None:
    waits = trace.events.text("name").mask("Stream Wait Event")
    if not (waits & of_same_rank(trace, rows)).any():
        return None
    # The rows of each stream by its device and number; the first of equal numbers.
    numbered = list(zip(work.stream_numbers(trace), work.streams, strict=True))
    streams: dict[object, slice] = dict(reversed(numbered))
    pairs: Pairs = set()
    for call, device, arguments, recorded_ns in sync_events(trace, rows, waits):
        called_ns = int(trace.events["start_ns"][call])
        waiting = streams.get((device, arguments.get("stream")))
        awaited = streams.get((device, arguments.get("wait_on_stream")))
        if waiting is None or awaited is None:
            continue
        source = work.launched_before(awaited, min(called_ns, recorded_ns))
        target = work.launched_before(waiting, called_ns) + 1
        if awaited.start <= source and target < waiting.stop:
            pairs.add((source, target))
    return pairs


def _by_order(trace: Trace, rows: Ids, work: WindowWork) -> Pairs:
    events = trace.events
    waits = rows[events.text("name").where(lambda name: bool(_WAIT_CALL.match(name)))[rows]]
    following = _next_launch(trace, waits, work)
    pairs: Pairs = set()
    for wait, target in zip(waits.tolist(), following.tolist(), strict=True):
        for stream in work.streams if target >= 0 else ():
            source = work.launched_before(stream, int(events["start_ns"][wait]))
            same = work.track[stream.start] == work.track[target]
            if not same and source >= stream.start and work.end_ns[source] <= work.start_ns[target]:
                pairs.add((source, target))
    return pairs


def _by_data(trace: Trace, work: WindowWork) -> Pairs:
    """The last work of an operator, and the first of one that needs its data on another stream."""
    operators = data_pairs(trace)
    launched = np.flatnonzero(work.call >= 0) if len(operators[0]) else operators[0]
    launched = launched[np.argsort(work.called_ns[launched], kind="stable")]
    called, track, spans = work.called_ns[launched], trace.events["track"], trace.events.spans()
    pairs: Pairs = set()
    for writer, reader in zip(*(column.tolist() for column in operators), strict=True):
        bounds = ([times[event] for times in spans] for event in (writer, reader))
        writes, reads = (launched[slice(*np.searchsorted(called, times))] for times in bounds)
        target = reads[track[work.call[reads]] == track[reader]][:1]
        source = writes[track[work.call[writes]] == track[writer]]
        source = source[work.end_ns[source] <= work.start_ns[target]][-1:] if len(target) else target
        pairs |= {*zip(source.tolist(), target.tolist(), strict=False)}
    source, target = last_needs(work.track, _columns(pairs), work.start_ns, work.end_ns)
    other = work.track[source] != work.track[target]
    return {*zip(source[other].tolist(), target[other].tolist(), strict=True)}


def _by_time(trace: Trace, work: WindowWork, latency: int, explained: Mask, by_data: Mask) -> Pairs:
    """Work that neither its launch nor its stream delayed, next to the end of another stream's.

    Where no call explains the wait, the cause may be farther away the longer the wait was. Or the device was
    full: then work begins when the last part of a kernel that was launched before leaves room.
    """
    latest = np.maximum(work.called_ns + latency, previous_ends(work))
    waited = work.start_ns - latest
    late = np.flatnonzero((waited > _SOON_NS) & (latest >= 0))
    before, after = _neighbors(work, late)
    since, unexplained = work.start_ns[late] - work.end_ns[before], ~explained[late]
    other = work.track[before] != work.track[late]
    soon = other & (since <= _SOON_NS) & ~by_data[late]
    full = ~soon & unexplained & _leaves_room(trace, work, after, late)
    near = other & unexplained & _earlier(work, before, late) & (since <= _LITTLE * waited[late])
    ended = soon | (near & ~full)
    pairs = zip(before[ended].tolist(), late[ended].tolist(), strict=True)
    return {*pairs, *zip(after[full].tolist(), late[full].tolist(), strict=True)}


def _neighbors(work: WindowWork, late: Ids) -> tuple[Ids, Ids]:
    """The work that ended last before each work began, and first after; itself if there is none."""
    order = np.argsort(work.end_ns, kind="stable")
    place = np.searchsorted(work.end_ns[order], work.start_ns[late], side="right")
    before = np.where(place > 0, order[place - 1], late)
    return before, np.where(place < len(order), order[np.minimum(place, len(order) - 1)], late)


def _leaves_room(trace: Trace, work: WindowWork, kernel: Ids, late: Ids) -> Mask:
    """Whether a kernel of another stream, launched and begun before, is in its last part."""
    length, rest = (work.end_ns[kernel] - work.start_ns[since] for since in (kernel, late))
    began = (work.start_ns[kernel] < work.start_ns[late]) & _earlier(work, kernel, late)
    other = work.track[kernel] != work.track[late]
    is_kernel = trace.events.text("category").mask("kernel")[work.event[kernel]]
    return began & other & is_kernel & (rest <= _LAST_PART * length)


def _earlier(work: WindowWork, rows: Ids, other: Ids) -> Mask:
    return work.called_ns[rows] < work.called_ns[other]


def _next_launch(trace: Trace, waits: Ids, work: WindowWork) -> Ids:
    """The next work that the same thread launches after each call, or -1."""
    start, track = trace.events["start_ns"], trace.events["track"]
    launched = np.flatnonzero(work.call >= 0)
    # Against the flow of time, the first that comes after a call is the last before it.
    backward = launched[np.argsort(work.called_ns[launched], kind="stable")][::-1]
    thread = track[work.call[backward]]
    following = last_started(track[waits], -start[waits], thread, -work.called_ns[backward])
    return np.append(backward, -1)[following]
