"""Handovers between CPU threads, where one waits for the other: forward to autograd and back.

`loss.backward()` hands the work to autograd's threads and sleeps until they are done. A trace does
not record this wait, but the training loop's thread begins no event meanwhile. (It may run parts of
backward itself, for parameters on the CPU; each such part ends its wait.)

Threads that communicate (Gloo's) take a collective and work beside the training loop, until it
waits for the result: it then is between two events, or in an operator that only waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stepscope.annotate.device.collectives import is_communication_wait
from stepscope.arrays import Ids, Times
from stepscope.graph.thread_tasks import around
from stepscope.trace.row_order import begins_run
from stepscope.trace.schema import STAGES
from stepscope.trace.trace import Trace

_RACE_NS = 50_000


@dataclass(frozen=True)
class Bursts:
    """Intervals of work that another thread does for the main thread.

    Attributes:
        track: the thread that works.
        start_ns: when the work begins.
        wait_ns: when the main thread begins to wait for its end.
        end_ns: when the main thread continues; -1 if it did not wait.
    """

    track: Ids
    start_ns: Times
    wait_ns: Times
    end_ns: Times


def find_bursts(trace: Trace, rows: Ids, main: int) -> Bursts:
    """The work that autograd's and communication's threads do for the thread `main`.

    Args:
        rows: the CPU events of the window.
        main: tracks.id of the training loop's thread.
    """
    tracks = trace.events["track"][rows]
    of_main = rows[tracks == main]
    others = (rows[tracks == track] for track in np.unique(tracks).tolist() if track != main)
    found = [bursts for of_thread in others for bursts in _of_thread(trace, of_thread, of_main)]
    columns = ("track", "start_ns", "wait_ns", "end_ns")
    empty = np.zeros(0, np.int64)
    return Bursts(*(np.concatenate([empty, *(getattr(one, name) for one in found)])
                    for name in columns))  # fmt: skip


def _of_thread(trace: Trace, rows: Ids, of_main: Ids) -> Iterator[Bursts]:
    """What a thread does for the main thread; nothing if it serves something else."""
    events = trace.events
    communicates = events.text("category").mask("communication")[rows]
    if communicates.any():
        yield _collectives(trace, rows[communicates], of_main)
    elif (events["stage"][rows] == STAGES.index("backward")).any():
        yield _parts_of_backward(trace, rows, np.sort(events["start_ns"][of_main]))


def _parts_of_backward(trace: Trace, rows: Ids, main_starts: Times) -> Bursts:
    """The thread's top-level events, grouped by the last main-thread event before them.

    The main thread waited for those that ended before it continued.
    """
    events = trace.events
    top = rows[around(trace, rows) < 0]
    start, end = events["start_ns"][top], events["start_ns"][top] + events["duration_ns"][top]
    group = np.searchsorted(main_starts, start, side="right")
    begins = np.flatnonzero(begins_run(group))
    following = np.append(main_starts, np.iinfo(np.int64).max)[group]
    awaited = np.where(end <= following + _RACE_NS, np.minimum(end, following), -1)
    joined = np.maximum.reduceat(awaited, begins)
    return Bursts(
        events["track"][top[begins]].astype(np.int64), start[begins], start[begins], joined
    )


def _collectives(trace: Trace, rows: Ids, of_main: Ids) -> Bursts:
    """One burst per collective; the main thread waits for it if it computes nothing at its end."""
    events = trace.events
    start, end = events["start_ns"][rows], events["start_ns"][rows] + events["duration_ns"][rows]
    since, innermost = _state_at(trace, of_main, end)
    computes = events.text("category").mask("cpu_op", "runtime")
    computes &= ~events.text("name").where(is_communication_wait)
    idle = ~np.append(computes, False)[innermost]
    track = events["track"][rows].astype(np.int64)
    return Bursts(track, start, np.maximum(start, since), np.where(idle, end, -1))


def _state_at(trace: Trace, rows: Ids, times: Times) -> tuple[Times, Ids]:
    """Since when a thread has been in the event that is innermost at each time; -1 for none.

    Args:
        rows: the thread's events, nested.
        times: shape (n,).
    """
    events = trace.events
    start = events["start_ns"][rows]
    time = np.concatenate([start, start + events["duration_ns"][rows]])
    owner = np.concatenate([rows, around(trace, rows)])
    # Of what begins and ends at the same time, the later row is the inner one: it begins last.
    place = np.arange(len(rows))
    order = np.lexsort((np.concatenate([place, -place]), time))
    last = np.searchsorted(time[order], times, side="left") - 1
    known = last >= 0
    found = order[np.maximum(last, 0)] if len(order) else np.zeros(len(times), np.int64)
    return np.where(known, time[found], times), np.where(known, owner[found], -1)
