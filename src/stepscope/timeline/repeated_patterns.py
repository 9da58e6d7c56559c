"""Patterns of operations that repeat back to back, such as the iterations of a loop."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.arrays import Ids

_LEAST_COUNT = 3
_LONGEST_PERIOD = 64


@dataclass(frozen=True)
class Repeat:
    """`count` copies of `period` operations, the first of them at `first`."""

    first: int
    period: int
    count: int

    @property
    def end(self) -> int:
        """Where the operation after the last copy is."""
        return self.first + self.period * self.count


def find_repeats(names: Ids) -> list[Repeat]:
    """Patterns of different names that repeat at least three times, in order, none in another.

    Where patterns overlap the one that covers most is taken, and of equals the shortest.

    Args:
        names: a code that operations of one name share, shape (operations,).

    Example:
        >>> find_repeats(np.array([9, 1, 2, 1, 2, 1, 2, 8]))
        [Repeat(first=1, period=2, count=3)]
    """
    longest = min(_LONGEST_PERIOD, len(names) // _LEAST_COUNT)
    found = [one for period in range(2, longest + 1) for one in _of_period(names, period)]
    found.sort(key=lambda one: (one.first - one.end, one.period))
    taken = np.zeros(len(names), np.bool_)
    kept = []
    for one in found:
        if not taken[one.first : one.end].any():
            taken[one.first : one.end] = True
            kept.append(one)
    return sorted(kept, key=lambda one: one.first)


def whole_period(names: Ids) -> int:
    """The period of the pattern that all names are copies of, as `find_repeats` has it; else 1.

    Example:
        >>> whole_period(np.array([1, 2, 1, 2, 1, 2])), whole_period(np.array([1, 1, 1, 1, 1, 1]))
        (2, 1)
    """
    size = len(names)
    if (names == names[0]).all():
        return 1
    for period in range(2, min(_LONGEST_PERIOD, size // _LEAST_COUNT) + 1):
        if size % period == 0 and (names[period:] == names[:-period]).all():
            return period
    return 1


def _of_period(names: Ids, period: int) -> list[Repeat]:
    """Unbroken runs in which every name equals the name `period` operations before."""
    same = np.concatenate([[False], names[period:] == names[:-period], [False]])
    first, end = np.flatnonzero(same[1:] != same[:-1]).reshape(-1, 2).T
    count = (end - first) // period + 1
    enough = count >= _LEAST_COUNT
    return [
        Repeat(at, period, copies)
        for at, copies in zip(first[enough].tolist(), count[enough].tolist(), strict=True)
        if (names[at : at + period] != names[at]).any()
    ]
