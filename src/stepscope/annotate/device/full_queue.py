"""Launches that wait because the queue of the device is full.

A device has room for about a thousand launches. A CPU that is further ahead waits inside the
launch until the device has ended some earlier work: that time is the device's, not the CPU's.
"""

from __future__ import annotations

import numpy as np

from stepscope.annotate.links.launches import launch_of
from stepscope.annotate.steps.earlier_work import unrecorded_work_end
from stepscope.arrays import Mask, Rows, Times
from stepscope.trace.trace import Trace

_FULL = 500  # works in the queue; CUDA has room for 1,024 launches of a channel
_MOST = 0.95  # of the works that were ever in the queue
_LONG, _LONGER = 2, 8  # times the usual launch: while the queue holds most, and many, works
_FULL_EVENT = "Command Buffer Full"  # CUPTI's name of such a wait, where it is recorded
_UNDELAYED = 10  # percentile


def full_queue_launches(trace: Trace, work: Rows) -> Rows:
    """Launches that took several times as long as usual while the queue was full, events.id.

    It was full if hundreds of works had been launched and not ended, or if the trace records it;
    and it may have been while the device did work from before the recording.

    Args:
        trace: a trace with launches.
        work: device work of one rank, events.id.
    """
    events = trace.events
    caller = launch_of(trace)[work].astype(np.int64)
    calls = np.unique(caller[caller >= 0])
    if not len(calls):
        return calls
    length, usual = events["duration_ns"][calls], usual_launch_ns(trace, calls)
    begin, end = events["start_ns"][calls], events["start_ns"][calls] + length
    ended = np.searchsorted(np.sort(events["start_ns"][work] + events["duration_ns"][work]), end)
    launched = np.searchsorted(np.sort(events["start_ns"][caller[caller >= 0]]), end)
    queued = launched - ended
    rank = int(trace["tracks"]["rank"][events["track"][work[0]]])
    unseen = end <= unrecorded_work_end(trace, rank)  # what else is queued then is not known
    many = unseen | (queued >= _FULL) | _recorded_as_full(trace, begin, end)
    most = unseen | (queued >= max(_FULL, _MOST * queued.max()))
    found: Rows = calls[(many & (length > _LONGER * usual)) | (most & (length > _LONG * usual))]
    return found


def usual_launch_ns(trace: Trace, calls: Rows) -> int:
    """What a launch takes the CPU where nothing delays it, ns.

    Args:
        trace: any trace.
        calls: launches, events.id.
    """
    return int(np.percentile(trace.events["duration_ns"][calls], _UNDELAYED)) if len(calls) else 0


def _recorded_as_full(trace: Trace, begin: Times, end: Times) -> Mask:
    """Whether the trace records a full queue in each span."""
    events = trace.events
    full = np.sort(events["start_ns"][events.text("name").mask(_FULL_EVENT)])
    found: Mask = np.searchsorted(full, begin) < np.searchsorted(full, end)
    return found
