"""Device work in a window: kernels, copies and collectives, each with its launch."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from stepscope.annotate.links.launches import device_work, launch_of
from stepscope.arrays import Ids, Mask, Times
from stepscope.graph.step_window import Window
from stepscope.trace.nesting import outermost
from stepscope.trace.row_order import begins_run, ends_run
from stepscope.trace.trace import Trace

UNKNOWN = np.iinfo(np.int64).min
_USUAL_NS, _MOST_NS = 10_000, 1_000_000  # of a launch


@dataclass(frozen=True)
class WindowWork:
    """Device work of a window, sorted by stream and start.

    Attributes:
        event: events.id.
        track: its stream.
        start_ns, end_ns: when it ran; clipped to the window's start and to the start of the next
            work of its stream, since a stream runs one at a time.
        call: the CPU event in the window that launched it, or -1.
        called_ns: when its launch began, `UNKNOWN` for work without a known launch.
        first: whether it is the first of its stream.
    """

    event: Ids
    track: Ids
    start_ns: Times
    end_ns: Times
    call: Ids
    called_ns: Times
    first: Mask

    @property
    def streams(self) -> list[slice]:
        """The rows of each stream."""
        bounds = np.append(np.flatnonzero(self.first), len(self.event)).tolist()
        return [slice(*pair) for pair in pairwise(bounds)]


def find_work(trace: Trace, window: Window) -> WindowWork:
    """The work launched in the window, and earlier work that still runs when it begins."""
    events = trace.events
    begin, finish = window.starts_ns[0], window.starts_ns[-1]
    start, end = events["start_ns"], events["start_ns"] + events["duration_ns"]
    call = launch_of(trace).astype(np.int64)
    called = np.where(call >= 0, start[call], UNKNOWN)
    inside = (called >= begin) & (called < finish)
    until = np.where(call >= 0, window.end_ns, finish)  # the CPU may be steps ahead of the device
    left_over = (called < begin) & (end > begin) & (start < until)
    wanted = outermost(events["parent"], device_work(trace)) & (inside | left_over)
    wanted &= trace["tracks"]["rank"][events["track"]] == window.rank
    rows = np.flatnonzero(wanted)
    rows = rows[np.lexsort((end[rows], start[rows], events["track"][rows]))]
    track = events["track"][rows].astype(np.int64)
    begins = np.maximum(start[rows], begin)
    ends = np.where(ends_run(track), end[rows],
                    np.minimum(end[rows], np.append(begins[1:], 0)[: len(rows)]))  # fmt: skip
    launched = np.where(inside[rows], call[rows], -1)
    return WindowWork(rows, track, begins, ends, launched, called[rows], begins_run(track))


def launch_latency(work: WindowWork, source: Ids, target: Ids) -> int:
    """The median time from a call to its work if nothing else delays the work, ns.

    Nothing does if all work that was launched before has ended. Where the CPU is always ahead, the
    trace does not show it; then it is that of work whose stream was free, unless that waited, too.

    Args:
        work: the work of a window.
        source, target: pairs of rows; the target waits for the source, on another stream.
    """
    ready = previous_ends(work)
    np.maximum.at(ready, target, work.end_ns[source])
    launched = work.call >= 0
    delay = work.start_ns - work.called_ns
    stream_free = launched & (ready <= work.called_ns)
    free = stream_free & (_earlier_launched_ends(work) <= work.called_ns)
    if free.any():
        return max(int(np.median(delay[free])), 0)
    found = int(np.median(delay[stream_free])) if stream_free.any() else 0
    return found if 0 <= found <= _MOST_NS else _USUAL_NS


def _earlier_launched_ends(work: WindowWork) -> Times:
    """When all work that was launched before each work has ended, ns; -1 for the first."""
    order = np.argsort(work.called_ns, kind="stable")
    ends = np.maximum.accumulate(work.end_ns[order])
    result = np.full(len(order), -1, np.int64)
    result[order[1:]] = ends[:-1]
    return result


def previous_ends(work: WindowWork) -> Times:
    """When the previous work on the same stream ended, ns; -1 for the first."""
    return np.where(work.first, -1, np.append(-1, work.end_ns[:-1])[: len(work.event)])
