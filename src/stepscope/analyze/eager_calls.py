"""Operators that the training loop calls on a CPU, with all that each call costs."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from stepscope.analyze.event_search import EventSearch
from stepscope.arrays import Ids, Mask, Rows, Times
from stepscope.trace.intervals import Intervals
from stepscope.trace.sets import distinct

DISPATCH_NS = 20_000  # of Python and C++ between two operators; in a longer time something else ran


class EagerCalls:
    """The outermost operators of the steps, in order of start, and what each costs.

    Args:
        search: the steps.

    Attributes:
        rows: events.id of the calls, int64, shape (n,).
    """

    def __init__(self, search: EventSearch) -> None:
        self._search, self._events = search, search.events
        self.rows: Rows = search.outermost(search.find(category="cpu_op"))

    @cached_property
    def cost_ns(self) -> Times:
        """Time until the next call of the same thread, so with dispatch and Python, shape (n,).

        At most `DISPATCH_NS` longer than the call itself.
        """
        start, duration = (self._events[name][self.rows] for name in ("start_ns", "duration_ns"))
        track = self._events["track"][self.rows]
        order = np.lexsort((start, track))
        gap = np.zeros(len(order), np.int64)
        gap[order[:-1]] = start[order][1:] - (start + duration)[order][:-1]
        same = np.zeros(len(order), np.bool_)
        same[order[:-1]] = np.diff(track[order]) == 0
        result: Times = duration + np.where(same, np.clip(gap, 0, DISPATCH_NS), 0)
        return result

    @cached_property
    def forward(self) -> Ids:
        """For each call of the backward pass that of the forward pass, as a position; else -1."""
        forward_event = self._events["forward_event"]
        linked = np.flatnonzero(forward_event >= 0)
        call, origin = self._positions[linked], self._positions[forward_event[linked]]
        found = np.full(len(self.rows), -1, np.int64)
        known = (call >= 0) & (origin >= 0) & (call != origin)
        found[call[known]] = origin[known]
        return found

    def around(self, rows: Rows) -> Ids:
        """The positions of the calls in which these events run, ascending."""
        found = self._positions[rows]
        return distinct(found[found >= 0])

    def with_backward(self, calls: Mask) -> Mask:
        """These calls, and those of their backward pass."""
        both: Mask = calls | np.append(calls, False)[self.forward]
        return both

    def ms(self, calls: Mask | Ids) -> float:
        """What these calls cost, ms per step."""
        return float(self.cost_ns[calls].sum()) / 1e6 / self._search.step_count

    def spans(self, calls: Mask | Ids) -> Intervals:
        """When these calls run, each until the next one."""
        start = self._events["start_ns"][self.rows[calls]]
        return Intervals(start, start + self.cost_ns[calls])

    @cached_property
    def _positions(self) -> Ids:
        """The position of the call around each event, or -1."""
        position = np.full(len(self._events) + 1, -1, np.int64)
        position[self.rows] = np.arange(len(self.rows))
        result: Ids = position[self._search.enclosing(self.rows)]
        return result
