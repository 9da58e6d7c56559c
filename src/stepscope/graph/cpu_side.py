"""The CPU side of a graph: tasks of threads, waits and handovers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from stepscope.annotate.steps.steps import main_track
from stepscope.arrays import Ids, Mask, Times
from stepscope.graph.device_tasks import Waits, WindowWork, find_waits
from stepscope.graph.step_window import Window
from stepscope.graph.thread_tasks import (
    HANDOVER,
    MARK,
    RETURN,
    Bursts,
    Cuts,
    TaskPieces,
    cut_threads,
    find_bursts,
    host_events,
)
from stepscope.trace.row_order import begins_run
from stepscope.trace.trace import Trace


@dataclass(frozen=True)
class CpuSide:
    """Tasks of the CPU threads, and indices of tasks with a special role.

    Attributes:
        main: tracks.id of the training loop's thread; of the busiest stream, if the file has no CPU
            events: steps then follow one another at the pace of its work.
        rows: the CPU events of the window.
        pieces: the tasks.
        waits: pairs of a waiting call and the device work that it waits for.
        calls: the distinct waiting calls.
        returns: for each of `calls`, the task at which the wait ends.
        bursts: work that other threads do for the main thread.
        joined: indices of the bursts that the main thread waits for.
        marks: tasks at which steps begin, and the last ends.
        forks: for each burst, the main thread's task that starts it.
        begun: for each burst, its first task.
        sleeps: for each joined burst, the main thread's task that begins the wait for it.
        joins: for each joined burst, the main thread's task that ends the wait.
    """

    main: int
    rows: Ids
    pieces: TaskPieces
    waits: Waits
    calls: Ids
    returns: Ids
    bursts: Bursts
    joined: Ids
    marks: Ids
    forks: Ids
    begun: Ids
    sleeps: Ids
    joins: Ids

    @property
    def is_missing(self) -> bool:
        """Whether the file has no CPU events, so that steps are marked on a stream."""
        return not len(self.rows)

    def working_times(self) -> tuple[Times, Times]:
        """Durations and gaps without the time in which a thread waits for another one."""
        pieces = self.pieces
        change = np.zeros(len(pieces.track) + 1, np.int64)
        np.add.at(change, pieces.of_event[self.calls], 1)
        np.add.at(change, self.sleeps, 1)
        np.add.at(change, np.concatenate([self.returns, self.joins]), -1)
        waiting = np.cumsum(change)[:-1] > 0
        gap = np.where(waiting, 0, pieces.gap_ns)
        # Between two bursts, their thread sleeps.
        later = self.begun[~begins_run(pieces.track)[self.begun]]
        gap[later - 1] = 0
        return np.where(waiting, 0, pieces.duration_ns), gap

    def awaited(self) -> Ids:
        """For each joined burst, the task whose end lets the main thread continue."""
        track, end = self.bursts.track[self.joined], self.bursts.end_ns[self.joined]
        result = np.zeros(len(track), np.int64)
        for thread in np.unique(track).tolist():
            tasks = np.flatnonzero(self.pieces.track == thread)
            of_thread = track == thread
            index = np.searchsorted(self.pieces.start_ns[tasks], end[of_thread], side="left") - 1
            result[of_thread] = tasks[np.maximum(index, 0)]
        return result

    def independent(self) -> Mask:
        """First tasks of threads that do not work for the training loop."""
        serves = np.isin(self.pieces.track, [self.main, *self.bursts.track])
        return begins_run(self.pieces.track) & ~serves

    def paced_by_earlier_work(self) -> Mask:
        """Tasks that follow a wait for work from before the recording."""
        result = np.zeros(len(self.pieces.track), np.bool_)
        unseen = self.waits.call[self.waits.work < 0]
        result[self.returns[np.searchsorted(self.calls, unseen)]] = True
        return result


def cut_cpu(trace: Trace, window: Window, work: WindowWork) -> CpuSide:
    """The CPU's tasks in a window, cut where steps begin and where threads wait or hand over."""
    rows = host_events(trace, window)
    is_missing = not len(rows) and len(work.event) > 0
    main = _busiest_stream(work) if is_missing else _main_track(trace, window.rank)
    waits = find_waits(trace, rows, work)
    calls, until = _wait_ends(trace, waits)
    bursts = find_bursts(trace, rows, main)
    joined = np.flatnonzero(bursts.end_ns >= 0)
    parts = (
        (_all(main, window.starts_ns), window.starts_ns, MARK),
        (_all(main, bursts.start_ns), bursts.start_ns, HANDOVER),
        (bursts.track, bursts.start_ns, HANDOVER),
        (_all(main, joined), bursts.wait_ns[joined], HANDOVER),
        (_all(main, joined), bursts.end_ns[joined], HANDOVER),
        (trace.events["track"][calls].astype(np.int64), until, RETURN),
    )
    pieces = cut_threads(trace, rows, Cuts.of(*parts), window)
    bounds = np.cumsum([0, *(len(part[0]) for part in parts)]).tolist()
    of_part = [pieces.of_cut[a:b] for a, b in pairwise(bounds)]
    marks, forks, begun, sleeps, joins, returns = of_part
    return CpuSide(
        main,
        rows,
        pieces,
        waits,
        calls,
        returns,
        bursts,
        joined,
        marks,
        forks,
        begun,
        sleeps,
        joins,
    )


def _all(value: int, like: Ids) -> Ids:
    return np.full(len(like), value, np.int64)


def _main_track(trace: Trace, rank: int) -> int:
    """The training loop's thread of a rank."""
    if len(trace.metadata.ranks) == 1:
        return main_track(trace)
    ranks = trace["tracks"]["rank"][trace.events["track"]]
    return main_track(trace.with_table(trace.events.take(ranks == rank)))


def _busiest_stream(work: WindowWork) -> int:
    return int(np.bincount(work.track, work.end_ns - work.start_ns).argmax())


def _wait_ends(trace: Trace, waits: Waits) -> tuple[Ids, Times]:
    """The distinct waiting calls, and the time at which each wait is over."""
    calls, index = np.unique(waits.call, return_inverse=True)
    start = trace.events["start_ns"][calls]
    until = start.copy()
    np.maximum.at(until, index, waits.until_ns)
    return calls, np.minimum(until, start + trace.events["duration_ns"][calls])
