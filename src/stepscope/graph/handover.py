"""Where one CPU thread hands over to another and waits: forward to autograd and back.

`loss.backward()` gives the work to autograd's threads and sleeps until they are done. Nothing in a
trace says so, but the training loop's thread begins nothing while they work. (It may run parts of
backward itself, for parameters on the CPU; then each such part is where it stopped waiting.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepscope.graph.host import around
from stepscope.trace.order import begins_run
from stepscope.trace.schema import STAGES
from stepscope.trace.trace import Trace

Ids = NDArray[np.int64]
Times = NDArray[np.int64]
_RACE_NS = 50_000


@dataclass(frozen=True)
class Bursts:
    """Stretches of work that another thread does for the main one.

    Attributes:
        track: the thread that works.
        start_ns: when it begins.
        end_ns: when the main thread goes on; -1 where it did not stop.
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
    """The thread's top events, grouped by which event of the main thread began last before.

    The main thread waited for those that ended by the time at which it went on.
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
