"""CPU threads cut into tasks: one per interval in which the same event is innermost.

An interval without an event is the gap of the previous task, so the tasks of a thread and their
gaps tile its time. Python frames belong to the gaps: they show where time is spent, not what is
done. Callers add further cuts: where a step begins, and where a thread begins or ends a wait.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.annotate.links.launches import on_host
from stepscope.annotate.range_names import is_step
from stepscope.arrays import Codes8, Ids, Mask, Times
from stepscope.graph.step_window import Window
from stepscope.trace.gather import gathered
from stepscope.trace.nesting import inherit
from stepscope.trace.row_order import ends_run
from stepscope.trace.trace import Trace

# Order of boundaries at the same time: ends, begins of steps, handovers between threads, starts,
# and ends of waits of a call that begins at this time.
_END, MARK, HANDOVER, _START, RETURN = range(5)
_CUT = -2


@dataclass(frozen=True)
class Cuts:
    """Times at which a thread is cut: `track`, `time_ns` and the kind of cut (`order`)."""

    track: Ids
    time_ns: Times
    order: Codes8

    @classmethod
    def of(cls, *parts: tuple[Ids, Times, int]) -> Cuts:
        """Cuts of several kinds, concatenated."""
        tracks, times = ([part[n] for part in parts] for n in (0, 1))
        orders = [np.full(len(part[0]), part[2], np.int8) for part in parts]
        return cls(*(np.concatenate(column) for column in (tracks, times, orders)))


@dataclass(frozen=True)
class TaskPieces:
    """Tasks of CPU threads, sorted by thread and time.

    Attributes:
        track: the thread of each task.
        owner: the innermost event, -1 for none.
        start_ns: measured start.
        duration_ns: measured length.
        gap_ns: time until the next task of the thread.
        of_event: for each event of the trace, its first task, or -1; the next task if the event
            has no self time.
        of_cut: for each cut, the task that it starts.
    """

    track: Ids
    owner: Ids
    start_ns: Times
    duration_ns: Times
    gap_ns: Times
    of_event: Ids
    of_cut: Ids


def host_events(trace: Trace, window: Window) -> Ids:
    """Events on the rank's CPU threads in the window that become tasks."""
    events = trace.events
    ranks = trace["tracks"]["rank"][events["track"]]
    start, end = events["start_ns"], events["start_ns"] + events["duration_ns"]
    wanted = events.text("category").mask("cpu_op", "runtime", "annotation", "communication")
    wanted[trace["launches"]["cpu_event"]] = True
    wanted &= ~events.text("name").where(is_step)
    inside = (start < window.starts_ns[-1]) & (end >= window.starts_ns[0])
    return np.flatnonzero(wanted & on_host(trace) & (ranks == window.rank) & inside)


def cut_threads(trace: Trace, rows: Ids, cuts: Cuts, window: Window) -> TaskPieces:
    """The tasks of the events `rows` on CPU threads, divided at `cuts`."""
    track, time, owner, origin = _boundaries(trace, rows, cuts, window)
    owner = _fill_cuts(owner, track)
    following = np.append(time[1:], window.starts_ns[-1])
    last = ends_run(track)
    length = np.where(last, 0, following - time)
    keep = ((length > 0) & (owner >= 0)) | _must_stay(trace, origin, rows)
    where: Ids = np.cumsum(keep) - keep
    of_event, of_cut = np.full(len(trace.events), -1), np.full(len(cuts.track), -1)
    begins = origin < len(rows)
    of_event[rows[origin[begins]]] = where[begins]
    cut = origin >= 2 * len(rows)
    of_cut[origin[cut] - 2 * len(rows)] = where[cut]
    track, time, length, owner = track[keep], time[keep], length[keep], owner[keep]
    length[owner < 0] = 0
    return TaskPieces(track, owner, time, length, _gaps(track, time, length), of_event, of_cut)


def _boundaries(trace: Trace, rows: Ids, cuts: Cuts, window: Window) -> tuple[Ids, Times, Ids, Ids]:
    """All starts, ends and cuts in order: track, time, innermost event afterwards, origin."""
    events = trace.events
    begin, finish = window.starts_ns[0], window.starts_ns[-1]
    start = np.clip(events["start_ns"][rows], begin, finish)
    end = np.clip(events["start_ns"][rows] + events["duration_ns"][rows], begin, finish)
    # Of what ends at the same time, the later row is the inner one, and ends first.
    outer, end, begun = around(trace, rows)[::-1], end[::-1], start[::-1]
    tracks, cut = events["track"][rows], np.full(len(cuts.track), _CUT)
    track = np.concatenate([tracks, tracks[::-1], cuts.track.astype(np.int32)])
    time = np.concatenate([start, end, cuts.time_ns])
    owner = np.concatenate([rows, outer, cut]).astype(np.int32)
    # An event without length ends at the time of its start, but after it.
    ends = np.where(begun == end, np.int8(RETURN + 1), np.int8(_END))
    order = np.concatenate([np.full(len(rows), _START, np.int8), ends, cuts.order])
    sorting = np.lexsort((order, time, track))
    return gathered(track, sorting), gathered(time, sorting), gathered(owner, sorting), sorting


def around(trace: Trace, rows: Ids) -> Ids:
    """The innermost of `rows` around each of them, or -1."""
    parent = trace.events["parent"]
    own = np.full(len(parent), -1, np.int32)
    own[rows] = rows
    inner = np.append(inherit(parent, own), -1)
    return inner[parent[rows]].astype(np.int64)


def _fill_cuts(owner: Ids, track: Ids) -> Ids:
    """A cut does not change the innermost event."""
    known = np.where(owner == _CUT, -1, np.arange(len(owner)))
    known = np.maximum.accumulate(known) if len(known) else known
    same = (known >= 0) & (track[known] == track)
    return np.where(same, owner[known], -1)


def _must_stay(trace: Trace, origin: Ids, rows: Ids) -> Mask:
    """Cuts and starts of runtime calls: other tasks depend on them, even with zero length."""
    called = trace.events.text("category").mask("runtime")
    called[trace["launches"]["cpu_event"]] = True
    stays = np.concatenate([called[rows], np.zeros(len(rows), np.bool_)])
    cut = origin >= len(stays)
    result: Mask = cut | stays[np.where(cut, 0, origin)] if len(stays) else cut
    return result


def _gaps(track: Ids, time: Times, length: Times) -> Times:
    """Time from each task's end to the start of the next task of its thread."""
    gap = np.append(time[1:], 0) - time - length
    gap[ends_run(track)] = 0
    result: Times = np.maximum(gap, 0)
    return result
