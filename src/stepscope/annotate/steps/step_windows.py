"""The window of each step: when it begins and when all of its work has ended.

The device runs behind the CPU: while the CPU is in one step, the device may still complete the step
before. A step is over when the CPU has left it and its device work has ended, so in a sequence of
steps a window lasts from the end of the previous window to that moment; the first begins when its
step begins on the CPU and the work of earlier steps has ended. Windows do not overlap and cover a
sequence without gaps. A step's length is the length of its window, and device time is busy or idle
within it, whichever step launched the work.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from stepscope.annotate.steps.warm_up import steady_steps
from stepscope.arrays import Mask, Times
from stepscope.trace.table import Table

GAP = 0.05  # steps with a longer gap between them, as a share of the earlier one, are no sequence


def step_windows(steps: Table) -> tuple[Times, Times]:
    """Start and end of the window of each step, int64, ns, shape (steps,).

    Args:
        steps: the table `steps` of one rank, in order of time.
    """
    starts, ends = steps["start_ns"].astype(np.int64), steps["end_ns"].astype(np.int64)
    completed = np.maximum(ends, steps["device_end_ns"])
    window_start, window_end = starts.copy(), ends.copy()
    first = np.append(np.flatnonzero(~follows(steps)), len(steps)).tolist()
    for begin, end in pairwise(first):
        earlier = completed[:begin].max(initial=starts[begin])
        bounds = np.append(max(starts[begin], earlier), completed[begin:end])
        if (np.diff(bounds) <= 0).any():  # a later step had nothing left to do
            bounds = np.concatenate([starts[begin:end], completed[end - 1 : end]])
            np.minimum(window_end[:begin], starts[begin], out=window_end[:begin])
        window_start[begin:end], window_end[begin:end] = bounds[:-1], bounds[1:]
    return window_start, window_end


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


def mean_device_ms(steps: Table) -> tuple[float | None, float | None]:
    """Mean busy and idle time of the busiest device per step, ms; None where no device works."""
    busy, idle = steps["device_busy_ns"], steps["device_idle_ns"]
    if not (busy.any() or idle.any()):
        return None, None
    return float(busy.mean()) / 1e6, float(idle.mean()) / 1e6


def step_lengths(steps: Table) -> Times:
    """The length of each step: the length of its window, int64, ns, shape (steps,)."""
    return steps["window_end_ns"] - steps["window_start_ns"]
