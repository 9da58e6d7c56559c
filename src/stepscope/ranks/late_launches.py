"""When a rank's device has nothing to compute since the CPU has not launched what comes next."""

from __future__ import annotations

import numpy as np

from stepscope.annotate.device.idle import data_loading_times
from stepscope.annotate.links.launches import launch_of
from stepscope.arrays import Ids, Times
from stepscope.trace.intervals import Intervals
from stepscope.trace.trace import Trace


def late_launches(
    trace: Trace, work: Ids, begins: Times, ends: Times, waits: Intervals
) -> Intervals:
    """From the end of computing to the call that launches what is computed next.

    Communication that runs meanwhile does not count, so a rank that waits long for others is as
    late as one that does not; the table `idle` calls that time communication.

    Args:
        trace: an annotated trace of one rank.
        work: the events that compute on a device, at least one.
        begins, ends: of the steps, ns, shape (steps,), at least one.
        waits: when the rank waits for others; they and data loading are left out.
    """
    events = trace.events
    work = work[np.argsort(events["start_ns"][work], kind="stable")]
    begin, caller = events["start_ns"][work], launch_of(trace)[work]
    reach = np.maximum.accumulate(begin + events["duration_ns"][work])
    since = np.concatenate([[min(begins[0], begin[0])], reach])
    until = np.append(begin, max(ends[-1], reach[-1]))
    is_known = np.append(caller >= 0, False)
    launched = np.where(is_known, np.append(events["start_ns"][caller], 0), until)
    late = Intervals(since, np.clip(launched, since, np.maximum(until, since)))
    unknown = Intervals(since[~is_known], np.maximum(until, since)[~is_known])
    late = late.minus(unknown.intersect(_communication(trace)))
    return late.minus(waits).minus(data_loading_times(trace))


def _communication(trace: Trace) -> Intervals:
    events = trace.events
    on_device = (trace["tracks"]["device"] >= 0)[events["track"]]
    rows = np.flatnonzero(events.text("category").mask("communication") & on_device)
    start = events["start_ns"][rows]
    return Intervals(start, start + events["duration_ns"][rows])
