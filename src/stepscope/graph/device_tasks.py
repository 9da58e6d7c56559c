"""Device work in a window, each with its launch, and the CPU calls that wait for it."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from stepscope.base.arrays import Ids, Mask, Times
from stepscope.facts.annotate.device.idle import (
    LONGEST_LAUNCH_NS,
    awaits_copy,
    full_queue_launches,
    may_stage,
    usual_launch_ns,
)
from stepscope.facts.annotate.jax.calls import is_compiled_call, is_wait
from stepscope.facts.annotate.links.launches import device_work, launch_of
from stepscope.graph.graph import Window
from stepscope.trace.columns import ParallelArrays
from stepscope.trace.nesting import outermost
from stepscope.trace.row_order import begins_run, ends_run
from stepscope.trace.sets import distinct
from stepscope.trace.trace import Trace

UNKNOWN = np.iinfo(np.int64).min
_USUAL_NS, _MOST_NS = 10_000, 1_000_000  # of a launch


@dataclass(frozen=True)
class WindowWork:
    """Device work of a window, sorted by stream and start."""

    event: Ids  # events.id
    track: Ids  # its stream
    # when it ran; clipped to the window's start and to the start of the next work of its stream, since a
    # stream runs one at a time
    start_ns: Times
    end_ns: Times
    call: Ids  # the CPU event in the window that launched it, or -1
    called_ns: Times  # when its launch began, `UNKNOWN` for work without a known launch
    first: Mask  # whether it is the first of its stream

    @cached_property
    def streams(self) -> list[slice]:
        """The rows of each stream."""
        bounds = np.append(np.flatnonzero(self.first), len(self.event)).tolist()
        return [slice(*pair) for pair in pairwise(bounds)]

    def stream_numbers(self, trace: Trace) -> list[tuple[int, int]]:
        """The device and the number of each stream; every device has a stream 7."""
        tracks, track = trace["tracks"], self.track[self.first]
        return list(zip(tracks["device"][track].tolist(), tracks["stream"][track].tolist(), strict=True))

    @cached_property
    def queued_ns(self) -> Times:
        """When the last launch of a stream up to each row began."""
        parts = [np.maximum.accumulate(self.called_ns[stream]) for stream in self.streams]
        return np.concatenate([self.called_ns[:0], *parts])

    def launched_before(self, stream: slice, time_ns: int) -> int:
        """The last row of a stream launched before a time; for none, the row before its first."""
        return int(stream.start) + int(np.searchsorted(self.queued_ns[stream], time_ns)) - 1


def find_work(trace: Trace, window: Window) -> WindowWork:
    """The work launched in the window, and earlier work that still runs when it begins."""
    events = trace.events
    begin, finish = window.starts_ns[0], window.starts_ns[-1]
    start, end = events["start_ns"], events["start_ns"] + events["duration_ns"]
    call = launch_of(trace).astype(np.int64)
    called = np.where(call >= 0, start[call], UNKNOWN)
    inside = (called >= begin) & (called < finish)
    # The CPU may be steps ahead of the device; launches of queued work may be from before the file.
    until = np.where(call >= 0, window.end_ns, max(int(finish), window.begin_ns))
    left_over = (called < begin) & (end > begin) & (start < until)
    wanted = outermost(events["parent"], device_work(trace)) & (inside | left_over)
    wanted &= trace["tracks"]["rank"][events["track"]] == window.rank
    rows = np.flatnonzero(wanted)
    rows = rows[np.lexsort((end[rows], start[rows], events["track"][rows]))]
    track = events["track"][rows].astype(np.int64)
    begins = np.maximum(start[rows], begin)
    ends = np.where(ends_run(track), end[rows], np.minimum(end[rows], np.append(begins[1:], 0)[: len(rows)]))
    ends = np.maximum(ends, begins)  # by a clock that is early, work may end before its window begins
    launched = np.where(inside[rows], call[rows], -1)
    return WindowWork(rows, track, begins, ends, launched, called[rows], begins_run(track))


def launch_latency(work: WindowWork, source: Ids, target: Ids) -> int:
    """The median time from a call to its work if nothing else delays the work, ns.

    Nothing does if all work that was launched before has ended. Of the first work that is not known,
    since the recording may lack what the device still had to do. Where the CPU is always ahead, the
    trace does not show it; then it is that of work whose stream was free, unless that waited, too.
    """
    ready = previous_ends(work)
    np.maximum.at(ready, target, work.end_ns[source])
    launched = work.call >= 0
    delay = work.start_ns - work.called_ns
    stream_free = launched & (ready <= work.called_ns)
    free = stream_free & (_earlier_launched_ends(work) <= work.called_ns)
    if free.any():
        return max(int(np.median(delay[free])), 0)
    soon = stream_free & (delay >= 0) & (delay <= _MOST_NS)
    return int(np.median(delay[soon])) if soon.any() else _USUAL_NS


def _earlier_launched_ends(work: WindowWork) -> Times:
    """When all work that was launched before each work has ended, ns; `_NEVER` for the first."""
    order = np.argsort(work.called_ns, kind="stable")
    ends = np.maximum.accumulate(work.end_ns[order])
    result = np.full(len(order), _NEVER, np.int64)
    result[order[1:]] = ends[:-1]
    return result


def previous_ends(work: WindowWork) -> Times:
    """When the previous work on the same stream ended, ns; -1 for the first."""
    return np.where(work.first, -1, np.append(-1, work.end_ns[:-1])[: len(work.event)])


_ALL_STREAMS = re.compile(r"^(cuda|hip)DeviceSynchronize|^cuCtxSynchronize|^(cuda|hip)Free$")
_ONE_STREAM = re.compile(
    r"^(cuda|hip|cu)(Stream|Event)Synchronize|^ur(QueueFinish|EventWait)|^ze\w+Synchronize"
)
_NEVER = int(np.iinfo(np.int64).max)


@dataclass(frozen=True, eq=False)
class WorkWaits(ParallelArrays):
    """Pairs of a waiting call (events.id) and the row of `Work` that it waits for."""

    call: Ids  # events.id, shape (pairs,)
    work: Ids  # rows of `Work`, -1 for work from before the recording
    until_ns: Times  # when the wait ends


def find_waits(trace: Trace, rows: Ids, work: WindowWork) -> WorkWaits:
    """Pairs of a waiting call among the CPU events `rows` and the work that it waits for.

    A call waits for work that was launched before it and ended before it returned. A device synchronization
    waits for the last work of every stream of the device that its `cuda_sync` event names, else of all; a
    stream or event synchronization, or a wait for XLA, for the stream and the record that its event names,
    else for the work that ended last; a copy call for its copy, or for what was queued before it; a launch
    into a full queue, and a call that XLA holds, for the work whose end made room.

    Source: DAYDREAM section 4.2.2, "CUDA Synchronization".
    """
    names = trace.events.text("name")
    of_all = rows[names.where(lambda name: bool(_ALL_STREAMS.match(name)))[rows]]
    for_xla = names.where(is_wait) & trace.events.text("category").mask("runtime")
    of_one = rows[(for_xla | names.where(lambda name: bool(_ONE_STREAM.match(name))))[rows]]
    pairs = (_every_stream(trace, of_all, work), _one_stream(trace, of_one, work))
    waits = [WorkWaits(call, awaited, work.end_ns[awaited]) for call, awaited in pairs]
    others = _full_queue(trace, work), _in_calls(trace, rows, work)
    return WorkWaits.joined([_copies(trace, work), *waits, *others])


def _copies(trace: Trace, work: WindowWork) -> WorkWaits:
    """Copy calls, each with its copy, or with the work before this on the stream.

    The call of pageable memory returns when all is staged, shortly before the copy ends. It lasts
    longer than a launch until then, or ends soon after the work that was queued before its copy.
    """
    copy = trace.events.text("category").mask("memcpy")[work.event]
    own = np.flatnonzero(copy & (work.call >= 0))
    begin, end = trace.events.spans(work.call[own])
    length, queued = end - begin, previous_ends(work)[own] - begin
    held = (queued >= LONGEST_LAUNCH_NS) & (queued <= length) & (length <= (1 + _SOON) * queued)
    held &= may_stage(trace, work.event[own])
    done = awaits_copy(trace, work.call[own], work.event[own])
    awaited = np.where(done, own, own - 1)
    return WorkWaits(work.call[own], awaited, np.minimum(end, work.end_ns[awaited])).take(done | held)


def _full_queue(trace: Trace, work: WindowWork) -> WorkWaits:
    """Launches into a full queue, and the work that ended last before they returned.

    The wait ends early enough for what a launch usually takes.
    """
    launches = full_queue_launches(trace, work.event)
    calls = launches[np.isin(launches, work.call)]
    begin, end = trace.events.spans(calls)
    order = np.argsort(work.end_ns, kind="stable")
    awaited = np.append(order, -1)[np.searchsorted(work.end_ns[order], end, side="right") - 1]
    every = distinct(work.call[work.call >= 0])
    usual = usual_launch_ns(trace, every)[np.searchsorted(every, calls)].astype(np.int64)
    waits = (awaited < 0) | (work.end_ns[awaited] > begin)
    return WorkWaits(calls[waits], awaited[waits], (end - usual)[waits])


_ALL = (-1, 0xFFFFFFFF)  # the stream of a device's synchronization: CUPTI_SYNCHRONIZATION_INVALID_VALUE
_LONG_NS = 1_000_000  # chosen: what XLA does itself before a call returns takes a tenth of it
_SOON = 0.5  # of the wait; chosen: a call that waited returns soon after what it waited for


def _in_calls(trace: Trace, rows: Ids, work: WindowWork) -> WorkWaits:
    """Calls of compiled functions in which nothing happens for long until work of earlier calls has ended.

    XLA, or who records it, lets a call wait so that it is no more than a few ahead of the device. No
    event shows this, but the call returns soon after the end of the work.
    """
    events, parent = trace.events, trace.events["parent"]
    calls, awaited = _one_stream(trace, rows[events.text("name").where(is_compiled_call)[rows]], work)
    (begin, end), until = events.spans(calls), work.end_ns[awaited]
    inner = np.flatnonzero(np.isin(parent, calls))
    place, (starts, ends) = np.searchsorted(calls, parent[inner]), events.spans(inner)
    before, since = ends <= until[place], begin.copy()
    np.maximum.at(since, place[before], ends[before])
    waits = (until - since >= _LONG_NS) & (end - until <= _SOON * (until - since))
    waits[place[~before & (starts < until[place])]] = False
    return WorkWaits(calls[waits], awaited[waits], until[waits])


def _every_stream(trace: Trace, calls: Ids, work: WindowWork) -> tuple[Ids, Ids]:
    last = _last_awaited(trace, calls, work)
    here, stream = np.nonzero(last >= 0)
    return calls[here], last[here, stream]


def _one_stream(trace: Trace, calls: Ids, work: WindowWork) -> tuple[Ids, Ids]:
    last = _last_awaited(trace, calls, work)
    latest = last[np.arange(len(calls)), np.append(work.end_ns, -1)[last].argmax(axis=1)]
    return calls[latest >= 0], latest[latest >= 0]


def _last_awaited(trace: Trace, calls: Ids, work: WindowWork) -> Ids:
    """For each call and stream, the last work launched before it and ended before its return, or -1, and -1.

    Of a call with a `cuda_sync` event, only on the device and the stream that this names, and launched
    before the record. XLA launches what was called for before a wait also during it, from other threads.
    """
    begin, end = trace.events.spans(calls)
    begin = np.where(trace.events.text("name").where(is_wait)[calls], end, begin)
    last = np.full((len(calls), len(work.streams) + 1), -1, np.int64)
    for column, rows in enumerate(work.streams):
        launched = np.searchsorted(work.queued_ns[rows], begin)
        count = np.minimum(launched, np.searchsorted(work.end_ns[rows], end, side="right"))
        last[:, column] = np.where(count > 0, rows.start + count - 1, -1)
    waits, row_of = trace.events.text("category").mask("sync"), dict(zip(calls.tolist(), last, strict=True))
    streams = list(zip(work.streams, work.stream_numbers(trace), strict=True))
    for call, device, arguments, recorded_ns in sync_events(trace, calls, waits):
        stream = arguments.get("wait_on_stream", arguments.get("stream"))
        for column, (rows, number) in enumerate(streams if isinstance(stream, int) else ()):
            latest = min(row_of[call][column], work.launched_before(rows, recorded_ns))
            is_awaited = number == (device, stream) or (stream in _ALL and number[0] == device)
            row_of[call][column] = latest if is_awaited and latest >= rows.start else -1
    return last


SyncEvent = tuple[int, int, Mapping[str, Any], int]


def sync_events(trace: Trace, calls: Ids, wanted: Mask) -> Iterator[SyncEvent]:
    """The call of each wanted `cuda_sync` event of the rank of some calls, its device and arguments, and when
    the CUDA event that it waits for was recorded, ns; of equal correlation ids the first record counts."""
    identity, start = trace.events["correlation"], trace.events["start_ns"]
    own, track = of_same_rank(trace, calls) & (identity >= 0), trace.events["track"]
    records = np.flatnonzero(own & trace.events.text("name").where(lambda name: name.endswith("EventRecord")))
    recorded = dict(zip(identity[records[::-1]].tolist(), start[records[::-1]].tolist(), strict=True))
    call_of = dict(zip(identity[calls].tolist(), calls.tolist(), strict=True))
    for row in np.flatnonzero(own & wanted & np.isin(identity, identity[calls])).tolist():
        arguments = trace.event_arguments(row)
        awaited = arguments.get("wait_on_cuda_event_record_corr_id")
        at = recorded.get(awaited, _NEVER) if isinstance(awaited, int) else _NEVER
        yield call_of[int(identity[row])], int(trace["tracks"]["device"][track[row]]), arguments, at


def of_same_rank(trace: Trace, rows: Ids) -> Mask:
    """Events of the same rank as `rows`; correlation ids are unique only within a rank."""
    rank = trace["tracks"]["rank"][trace.events["track"]]
    return rank == rank[rows[:1]] if len(rows) else np.zeros(len(rank), np.bool_)
