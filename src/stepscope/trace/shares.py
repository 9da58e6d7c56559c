"""Events whose time belongs to several things, such as kernels fused from operations."""

from typing import NamedTuple

import numpy as np

from stepscope.base.arrays import Floats, Ids, Integers
from stepscope.trace.intervals import index_pairs


class Shares(NamedTuple):
    """The elements that events divide among, sorted by event; columns of shape (shares,)."""

    event: Ids
    element: Ids  # what this share of the event belongs to
    until: Floats  # the share of the event up to and including this one

    @classmethod
    def of(cls, event: Ids, element: Ids, share: Floats) -> "Shares":
        """From the share of each element, those of an event one after the other."""
        first = np.flatnonzero(np.diff(event, prepend=-1))
        total = np.cumsum(share)
        until = total - np.repeat(total[first] - share[first], np.diff(np.append(first, len(event))))
        until[np.append(np.diff(event) != 0, True)[: len(event)]] = 1.0
        return cls(event, element, until)

    def divide(self, rows: Ids, values: Integers) -> tuple[Ids, Ids, Integers]:
        """The parts of the values of some events; those of an event add up to its value.

        Returns the position in `rows`, the element and the value of each part; none for events that are
        not divided.
        """
        first = np.searchsorted(self.event, rows)
        owner, place = index_pairs(first, np.searchsorted(self.event, rows, side="right"))
        until = np.floor(values[owner] * self.until[place])
        parts = (until - np.where(place == first[owner], 0, np.roll(until, 1))).astype(np.int64)
        return owner, self.element[place], parts

    def spread(self, rows: Ids, values: Integers) -> tuple[Ids, Integers]:
        """Elements and values of some events; an event that is not divided is its own element."""
        owner, element, parts = self.divide(rows, values)
        whole = np.bincount(owner, minlength=len(rows)) == 0
        return np.concatenate([rows[whole], element]), np.concatenate([values[whole], parts])


NO_SHARES = Shares(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
