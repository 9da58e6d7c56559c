"""The clocks that a run would have shown without the cost of recording.

Time is removed where recording took it on the CPU. If a device is busy meanwhile, it goes on: the
CPU is then further ahead of it. This lead ends where the device is idle, because it waited for a
launch that now comes earlier, or where the CPU waits for the device, which now takes longer. So
device work keeps its length, starts after its launch, and a step that a device limits keeps its
length too.

Source: the lead follows the recursion of a queue, D. V. Lindley, "The theory of queues with a
single server", 1952.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stepscope.arrays import Floats, Mask, Times
from stepscope.trace.intervals import Intervals
from stepscope.trace.sets import distinct

_IDLE_KEPT = 0.05  # of idle time, so that the order of events holds


class Clocks(NamedTuple):
    """Corrected times of the CPU and of devices at some recorded times.

    Attributes:
        recorded: int64, ns, ascending, shape (n,).
        cpu: the same times on the corrected clock of the CPU, float64, ns, shape (n,).
        device: on that of the devices; never before the CPU's.
    """

    recorded: Times
    cpu: Floats
    device: Floats

    def on_cpu(self, times: Times) -> Times:
        """Corrected times of events on the CPU, int64, ns, the shape of `times`."""
        return self._at(times, self.cpu)

    def on_device(self, times: Times) -> Times:
        """Corrected times of events on a device, int64, ns, the shape of `times`."""
        return self._at(times, self.device)

    def _at(self, times: Times, corrected: Floats) -> Times:
        shift = np.interp(times, self.recorded, corrected - self.recorded)
        return times + np.rint(shift).astype(np.int64)


def corrected_clocks(bounds: Times, removed: Floats, busy: Intervals, waits: Intervals) -> Clocks:
    """Clocks without the time that recording took.

    Args:
        bounds: recorded times, int64, ns, ascending, shape (n + 1,).
        removed: time to remove between them on the CPU, ns, shape (n,).
        busy: when a device works.
        waits: when the CPU waits for a device.
    """
    until = np.concatenate([[0.0], np.cumsum(removed)])
    if not len(busy):
        return Clocks(bounds, bounds - until, bounds - until)
    edges = [busy.starts, busy.ends, waits.starts, waits.ends]
    times = distinct(np.concatenate([bounds, *edges]))
    cost = np.diff(np.interp(times, bounds, until))
    idle = busy.within(times[:-1], times[1:]) == 0
    idle_ns = np.where(idle, (1 - _IDLE_KEPT) * np.diff(times), 0.0)
    lead, ended = _leads(cost, idle_ns, np.isin(times[1:], waits.ends))
    device = np.cumsum(np.minimum(ended, idle_ns))
    shifts = (np.concatenate([[0.0], shift]) for shift in (device + lead, device))
    return Clocks(times, *(times - shift for shift in shifts))


def _leads(cost: Floats, idle_ns: Floats, wait_ends: Mask) -> tuple[Floats, Floats]:
    """How far the CPU is ahead after each stretch of time, and how much of its lead ended in it."""
    most = float(cost.sum()) + 1.0
    change = cost - np.where(wait_ends, most, idle_ns)
    total = np.cumsum(change)
    lead = total - np.minimum(np.minimum.accumulate(total), 0.0)
    ended = np.concatenate([[0.0], lead[:-1]]) + cost - lead
    return lead, ended
