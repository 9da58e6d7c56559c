"""Handovers between CPU threads, where one waits for the other: forward to autograd and back.

`loss.backward()` hands the work to autograd's threads and sleeps until they are done. A trace does
not record this wait, but the training loop's thread begins no event meanwhile. (It may run parts of
backward itself, for parameters on the CPU; each such part ends its wait.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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
        end_ns: when the main thread continues; -1 if it did not wait.
    """

    track: Ids
    start_ns: Times
    end_ns: Times


def find_bursts(trace: Trace, rows: Ids, main: int) -> Bursts:
    """The work that autograd's and communication's threads do for the thread `main`.

    Args:
        rows: the CPU events of the window.
        main: tracks.id of the training loop's thread.
    """
    events = trace.events
    starts = np.sort(events["start_ns"][rows[events["track"][rows] == main]])
    found = [
        _of_thread(trace, rows[events["track"][rows] == track], starts)
        for track in np.unique(events["track"][rows]).tolist()
        if track != main and _serves(trace, rows[events["track"][rows] == track])
    ]
    if not found:
        return Bursts(*(np.zeros(0, np.int64) for _ in range(3)))
    return Bursts(*(np.concatenate(column) for column in zip(*found, strict=True)))


def _serves(trace: Trace, rows: Ids) -> bool:
    events = trace.events
    backward = events["stage"][rows] == STAGES.index("backward")
    return bool(backward.any() or events.text("category").mask("communication")[rows].any())


def _of_thread(trace: Trace, rows: Ids, main_starts: Times) -> tuple[Ids, Times, Times]:
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
    return events["track"][top[begins]].astype(np.int64), start[begins], joined
