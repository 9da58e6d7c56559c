"""What devices do in a window: kernels, copies and collectives, each with the call it waits for."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from stepscope.annotate.launches import launch_of
from stepscope.annotate.tracks import device_work
from stepscope.graph.window import Window
from stepscope.trace.nesting import inherit
from stepscope.trace.order import begins_run, ends_run
from stepscope.trace.trace import Trace

Ids = NDArray[np.int64]
Times = NDArray[np.int64]
Mask = NDArray[np.bool_]
UNKNOWN = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Work:
    """Device work of a window, stream by stream in order of start.

    Attributes:
        event: events.id.
        track: its stream.
        start_ns, end_ns: when it ran; cut at the window's start and where the next of its stream
            begins, since a stream does one thing at a time.
        call: the CPU event that launched it within the window, or -1.
        called_ns: when that began; far in the past for work launched earlier.
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


def find_work(trace: Trace, window: Window) -> Work:
    """The work launched in the window, and what of earlier work still runs when it begins."""
    events = trace.events
    begin, finish = window.starts_ns[0], window.starts_ns[-1]
    start, end = events["start_ns"], events["start_ns"] + events["duration_ns"]
    call = launch_of(trace).astype(np.int64)
    called = np.where(call >= 0, start[call], UNKNOWN)
    inside = (called >= begin) & (called < finish)
    left_over = (called < begin) & (end > begin) & (start < finish)
    wanted = _outermost(trace) & (inside | left_over)
    wanted &= trace["tracks"]["rank"][events["track"]] == window.rank
    rows = np.flatnonzero(wanted)
    rows = rows[np.lexsort((end[rows], start[rows], events["track"][rows]))]
    track = events["track"][rows].astype(np.int64)
    begins = np.maximum(start[rows], begin)
    ends = np.where(ends_run(track), end[rows],
                    np.minimum(end[rows], np.append(begins[1:], 0)[: len(rows)]))  # fmt: skip
    launched = np.where(inside[rows], call[rows], -1)
    return Work(rows, track, begins, ends, launched, called[rows], begins_run(track))


def launch_latency(work: Work) -> int:
    """How soon work starts after its call where nothing is before it: the median, ns."""
    free = (work.call >= 0) & (previous_ends(work) <= work.called_ns)
    delay = (work.start_ns - work.called_ns)[free]
    return max(int(np.median(delay)), 0) if len(delay) else 0


def previous_ends(work: Work) -> Times:
    """When what came before each work on its stream ended, ns; -1 for the first."""
    return np.where(work.first, -1, np.append(-1, work.end_ns[:-1])[: len(work.event)])


def _outermost(trace: Trace) -> Mask:
    """Work that lies in no other work of its track."""
    work = device_work(trace)
    parent = trace.events["parent"]
    around = np.append(inherit(parent, np.where(work, 1, -1)), -1)
    result: Mask = work & (around[parent] < 0)
    return result
