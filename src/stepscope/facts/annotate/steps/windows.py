"""The window of each step (docs/glossary.md): when it begins and when all of its work has ended.

Device time is busy or idle within it, whichever step launched the work.
"""

from itertools import pairwise

import numpy as np

from stepscope.base.arrays import Ids32, Mask, Rows, Times
from stepscope.facts.annotate.jax.calls import BEFORE_RECORDING
from stepscope.facts.annotate.jax.device_runs import call_times
from stepscope.facts.annotate.links.launches import device_work, launch_of, of_rank
from stepscope.facts.annotate.steps.step_table import steady_steps
from stepscope.trace.intervals import Intervals
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

GAP = 0.05  # steps with a longer gap between them, as a share of the earlier one, are no sequence
_NEVER = np.iinfo(np.int64).max


def step_windows(steps: Table, complete: Mask | None = None) -> tuple[Times, Times]:
    """Start and end of the window of each step, int64, ns, shape (steps,).

    Args:
        steps: the table `steps` of one rank, in order of time.
        complete: whether all work of each step is recorded, shape (steps,); by default it is. A step
            that lacks work continues no sequence, and its window is its range on the CPU.
    """
    starts, ends = steps["start_ns"].astype(np.int64), steps["end_ns"].astype(np.int64)
    completed = np.maximum(ends, steps["device_end_ns"])
    window_start, window_end = starts.copy(), ends.copy()
    follow = follows(steps)
    complete = np.ones(len(steps), np.bool_) if complete is None else complete
    follow[1:] &= complete[1:] & complete[:-1]
    earlier = np.maximum.accumulate(completed)
    limit = np.full(len(steps) + 1, _NEVER)  # of the ends of all windows before each step
    first = np.append(np.flatnonzero(~follow), len(steps)).tolist()
    for begin, end in pairwise(first):
        if not complete[begin]:
            continue
        opens = max(starts[begin], earlier[begin - 1]) if begin else starts[begin]
        bounds = np.append(opens, completed[begin:end])
        if (np.diff(bounds) <= 0).any():  # a later step had nothing left to do
            bounds = np.concatenate([starts[begin:end], completed[end - 1 : end]])
            limit[begin] = starts[begin]
        window_start[begin:end], window_end[begin:end] = bounds[:-1], bounds[1:]
    return window_start, np.minimum(window_end, np.minimum.accumulate(limit[::-1])[::-1][1:])


def follows(steps: Table) -> Mask:
    """Whether each step continues the sequence of the step before it, bool, shape (steps,).

    A warm-up step, which no mean includes, is a sequence of its own.
    """
    starts, ends = steps["start_ns"], steps["end_ns"]
    result = np.zeros(len(steps), np.bool_)
    near = starts[1:] <= ends[:-1] + GAP * (ends - starts)[:-1]
    steady = steady_steps(steps)
    result[1:] = near & (steady[1:] == steady[:-1]) & (steps["rank"][1:] == steps["rank"][:-1])
    return result


# -- work from before the first step

QUEUED_NS = 1_000_000  # no free device takes as long to begin what has been launched
_SEVERAL = 2  # works of a queue
_BUSY = 0.5  # of the time in which a queue is worked off


def end_of_earlier_work(trace: Trace, called: Ids32, starts: Times, queued: Mask) -> int:
    """When the work ends that was called for before the first step, or -1 if there is none.

    `called` is the call of each event of compiled work on the host, and `queued` the device work
    that was launched before the recording, shape (events,) each.
    """
    on_device = max(_on_device(trace, starts, queued), unrecorded_work_end(trace, trace.metadata.ranks[0]))
    return max(_on_host(trace, called, starts), on_device)


def unrecorded_work_end(trace: Trace, rank: int) -> int:
    """When a rank's device ends work from before the recording that is not in the trace, or -1.

    A recording begins while the device still has work in its queue. Recorders leave that work out;
    it shows as time in which the device seems idle, although work has been launched. That work
    then runs without pauses.
    """
    work = np.flatnonzero(device_work(trace) & of_rank(trace, rank))
    call = launch_of(trace)[work].astype(np.int64)
    if not len(work) or call[0] < 0:
        return -1
    start = trace.events["start_ns"]
    wait = int(start[work[0]] - trace.events.spans(call[:1])[1][0])
    if wait - _usual_delay(trace, work, call) < QUEUED_NS:
        return -1
    queued = (call >= 0) & (start[call] < start[work[0]])
    return int(start[work[0]]) if _dense(trace.events, work[queued]) else -1


def _dense(events: Table, work: Rows) -> bool:
    """Whether there are several pieces of work, and a device is busy for most of their time."""
    if len(work) < _SEVERAL:
        return False
    start, end = events.spans(work)
    busy = Intervals(start, np.maximum(end, start)).total()
    return bool(busy >= _BUSY * (end.max() - start.min()))


def _on_device(trace: Trace, starts: Times, queued: Mask) -> int:
    """When recorded work ends that was launched before the first step, or -1 if there is none.

    Each stream ends it before it begins work of the steps; a stream without any counts until another does:
    small work of the first step, such as a copy ahead, may run beside most of what was launched before.
    """
    events = trace.events
    first_ns = starts.min(initial=_NEVER)
    work, called = trace["launches"]["device_event"], call_times(trace)
    earlier = np.append(work[called < first_ns], np.flatnonzero(queued))
    own = work[called >= first_ns]
    if not len(earlier) or not len(own):
        return -1
    begins = np.full(len(trace["tracks"]), _NEVER)
    np.minimum.at(begins, events["track"][own], events["start_ns"][own])
    begins[begins == _NEVER] = begins.min()
    return int(np.minimum(events.spans(earlier)[1], begins[events["track"][earlier]]).max())


def _usual_delay(trace: Trace, work: Rows, call: Rows) -> int:
    """The median time from the return of a launch to its work where the device was free, ns.

    The clocks of a CPU and a device may differ in some recordings.
    """
    events = trace.events
    busy_until = np.maximum.accumulate(events.spans(work)[1])[:-1]
    returned = events.spans(call[1:])[1]
    free = (call[1:] >= 0) & (busy_until <= returned)
    delay = (events["start_ns"][work[1:]] - returned)[free]
    return max(int(np.median(delay)), 0) if len(delay) else 0


def _on_host(trace: Trace, called: Ids32, starts: Times) -> int:
    """When the compiled work on the host ends that was called for before the first step, or -1."""
    earlier = (called >= 0) & (trace.events["start_ns"][called] < starts.min(initial=_NEVER))
    work = (called == BEFORE_RECORDING) | earlier
    return int(trace.events.spans(np.flatnonzero(work))[1].max(initial=-1))
