"""The end of the work that was called for before the first step, where its time begins."""

from __future__ import annotations

import numpy as np

from stepscope.annotate.links.launch_sides import device_work
from stepscope.annotate.links.launches import launch_of
from stepscope.annotate.links.program_runs import BEFORE_RECORDING, UNKNOWN
from stepscope.arrays import Ids32, Rows, Times
from stepscope.trace.intervals import Intervals
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

QUEUED_NS = 1_000_000  # no free device takes as long to begin what has been launched
_SEVERAL = 2
_BUSY = 0.5  # of the time in which a queue is worked off


def end_of_earlier_work(trace: Trace, called: Ids32, starts: Times) -> int:
    """When the work ends that was called for before the first step, or -1 if there is none.

    Args:
        trace: a trace with launches.
        called: the call of each event of compiled work on the host, shape (events,).
        starts: when each step begins on the CPU, ns.
    """
    on_device = max(_on_device(trace, starts), unrecorded_work_end(trace, trace.metadata.ranks[0]))
    return max(_on_host(trace, called, starts), on_device)


def unrecorded_work_end(trace: Trace, rank: int) -> int:
    """When a rank's device ends work from before the recording that is not in the trace, or -1.

    A recording begins while the device still has work in its queue. Recorders leave that work out;
    it shows as time in which the device seems idle, although work has been launched. That work
    then runs without pauses.
    """
    of_rank = (trace["tracks"]["rank"] == rank)[trace.events["track"]]
    work = np.flatnonzero(device_work(trace) & of_rank)
    work = work[np.argsort(trace.events["start_ns"][work], kind="stable")]
    call = launch_of(trace)[work].astype(np.int64)
    if not len(work) or call[0] < 0:
        return -1
    start = trace.events["start_ns"]
    wait = int(start[work[0]] - _ends(trace.events, call[:1])[0])
    if wait - _usual_delay(trace, work, call) < QUEUED_NS:
        return -1
    queued = (call >= 0) & (start[call] < start[work[0]])
    return int(start[work[0]]) if _dense(trace.events, work[queued]) else -1


def _dense(events: Table, work: Rows) -> bool:
    """Whether there are several pieces of work, and a device is busy for most of their time."""
    if len(work) < _SEVERAL:
        return False
    start, end = events["start_ns"][work], _ends(events, work)
    busy = Intervals(start, np.maximum(end, start)).total()
    return bool(busy >= _BUSY * (end.max() - start.min()))


def _on_device(trace: Trace, starts: Times) -> int:
    """When recorded work ends that was launched before the first step, or that of the step begins.

    It is -1 if there is none of both.
    """
    events = trace.events
    work = np.flatnonzero(device_work(trace))
    call = launch_of(trace)[work]
    first_ns = starts.min(initial=np.iinfo(np.int64).max)
    called_ns = np.where(call >= 0, events["start_ns"][call], first_ns)
    earlier, own = work[called_ns < first_ns], work[(call >= 0) & (called_ns >= first_ns)]
    if not len(earlier) or not len(own):
        return -1
    return int(min(_ends(events, earlier).max(), events["start_ns"][own].min()))


def _usual_delay(trace: Trace, work: Rows, call: Rows) -> int:
    """The median time from the return of a launch to its work where the device was free, ns.

    The clocks of a CPU and a device may differ in some recordings.
    """
    events = trace.events
    busy_until = np.maximum.accumulate(_ends(events, work))[:-1]
    returned = _ends(events, call[1:])
    free = (call[1:] >= 0) & (busy_until <= returned)
    delay = (events["start_ns"][work[1:]] - returned)[free]
    return max(int(np.median(delay)), 0) if len(delay) else 0


def _on_host(trace: Trace, called: Ids32, starts: Times) -> int:
    """When the compiled work on the host ends that was called for before the first step, or -1."""
    if not (called != UNKNOWN).any():
        return -1
    begin = trace.events["start_ns"]
    earlier = (called >= 0) & (begin[called] < starts.min(initial=np.iinfo(np.int64).max))
    work = (called == BEFORE_RECORDING) | earlier
    return int(_ends(trace.events, np.flatnonzero(work)).max(initial=-1))


def _ends(events: Table, rows: Rows) -> Times:
    ends: Times = events["start_ns"][rows] + events["duration_ns"][rows]
    return ends
