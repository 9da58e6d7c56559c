"""Where work on one stream waits for work on another: events recorded and waited for."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from stepscope.graph.device import Work, launch_latency, previous_ends
from stepscope.graph.waits import record_time, record_times
from stepscope.trace.trace import Trace

Ids = NDArray[np.int64]
Pairs = set[tuple[int, int]]
_SOON_NS = 20_000
_WAIT_CALL = re.compile(r"^(cuda|hip|cu)StreamWaitEvent")


def find_stream_waits(trace: Trace, rows: Ids, work: Work) -> tuple[Ids, Ids]:
    """Pairs of rows of `Work`: what is waited for, and what waits.

    `cuda_sync` events tell the stream and the record. Without them, a call that makes a stream wait
    ties the thread's next launch to what every other stream of the device was given before, except
    what was seen to end only after that launch's work had begun. And work that began late, right
    after another stream's ended, waited for that.
    """
    told = _told(trace, rows, work)
    inferred = told if told is not None else _by_order(trace, rows, work) | _by_time(work)
    pairs = sorted(inferred)
    source, target = (np.array([pair[n] for pair in pairs], np.int64) for n in (0, 1))
    return source, target


def _told(trace: Trace, rows: Ids, work: Work) -> Pairs | None:
    events = trace.events
    sync = np.flatnonzero(events.text("name").mask("Stream Wait Event"))
    if not len(sync):
        return None
    rows = rows[events["correlation"][rows] >= 0]
    called = {int(events["correlation"][row]): int(events["start_ns"][row]) for row in rows}
    records = record_times(trace)
    pairs: Pairs = set()
    for row in sync.tolist():
        arguments = trace.event_arguments(row)
        moment = called.get(int(events["correlation"][row]))
        waiting = _stream(trace, work, arguments.get("stream"))
        awaited = _stream(trace, work, arguments.get("wait_on_stream"))
        if moment is None or waiting is None or awaited is None:
            continue
        before = min(moment, record_time(records, arguments))
        source = _given_before(work, awaited, before)
        target = _given_before(work, waiting, moment) + 1
        if awaited.start <= source and target < waiting.stop:
            pairs.add((source, target))
    return pairs


def _by_order(trace: Trace, rows: Ids, work: Work) -> Pairs:
    events = trace.events
    is_wait = events.text("name").where(lambda name: bool(_WAIT_CALL.match(name)))
    waits = rows[is_wait[rows]]
    following = _next_launch(trace, waits, work)
    pairs: Pairs = set()
    for wait, target in zip(waits.tolist(), following.tolist(), strict=True):
        for rows_ in work.streams if target >= 0 else ():
            source = _given_before(work, rows_, int(events["start_ns"][wait]))
            same = work.track[rows_.start] == work.track[target]
            if not same and source >= rows_.start and work.end_ns[source] <= work.start_ns[target]:
                pairs.add((source, target))
    return pairs


def _by_time(work: Work) -> Pairs:
    """Work that neither its launch nor its stream held back, right behind another stream's."""
    latest = np.maximum(work.called_ns + launch_latency(work), previous_ends(work))
    late = np.flatnonzero((work.start_ns - latest > _SOON_NS) & (latest >= 0))
    order = np.argsort(work.end_ns, kind="stable")
    index = np.searchsorted(work.end_ns[order], work.start_ns[late], side="right") - 1
    source = order[np.maximum(index, 0)] if len(order) else late
    soon = (index >= 0) & (work.start_ns[late] - work.end_ns[source] <= _SOON_NS)
    soon &= work.track[source] != work.track[late]
    return set(zip(source[soon].tolist(), late[soon].tolist(), strict=True))


def _next_launch(trace: Trace, waits: Ids, work: Work) -> Ids:
    """The work that the same thread launches next after each call, or -1."""
    events = trace.events
    launched = np.flatnonzero(work.call >= 0)
    thread = events["track"][work.call[launched]]
    result = np.full(len(waits), -1, np.int64)
    for track in np.unique(events["track"][waits]).tolist():
        mine = launched[thread == track]
        mine = mine[np.argsort(work.called_ns[mine], kind="stable")]
        asked = np.flatnonzero(events["track"][waits] == track)
        index = np.searchsorted(work.called_ns[mine], events["start_ns"][waits[asked]])
        found = index < len(mine)
        result[asked[found]] = mine[index[found]]
    return result


def _stream(trace: Trace, work: Work, number: object) -> slice | None:
    streams = trace["tracks"]["stream"]
    return next((rows for rows in work.streams if streams[work.track[rows.start]] == number), None)


def _given_before(work: Work, rows: slice, moment: int) -> int:
    """The last work of a stream launched before a moment; the row before the first for none."""
    launched = np.maximum.accumulate(work.called_ns[rows])
    return int(rows.start) + int(np.searchsorted(launched, moment)) - 1
