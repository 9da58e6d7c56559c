"""The longest of many rows, without sorting them all."""

from __future__ import annotations

import numpy as np

from stepscope.arrays import Ids, Rows, Times
from stepscope.trace.row_order import begins_run

_MANY = 4  # times as many rows as are wanted: cutting off the rest is cheaper than sorting it


def longest_of(rows: Rows, time: Times, most: int) -> Rows:
    """The rows that take most time, the longest first; of equals the first."""
    return rows[longest_of_each(np.zeros(len(rows), np.int64), time, most)]


def longest_of_each(of: Ids, time: Times, most: int) -> Ids:
    """The places of the rows that take most time in each of several sets.

    Args:
        of: the set of each row, ascending, shape (rows,).
        time: of each row, ns, shape (rows,).
        most: places of each set.

    Returns:
        Set by set, the longest first; of equals the first.

    Example:
        >>> longest_of_each(np.array([0, 0, 0, 2]), np.array([5, 9, 9, 1]), 2).tolist()
        [1, 2, 3]
    """
    first = np.flatnonzero(begins_run(of))
    size = np.diff(np.append(first, len(of)))
    kept = np.ones(len(of), np.bool_)
    large = size > _MANY * most
    for start, count in zip(first[large].tolist(), size[large].tolist(), strict=True):
        part = time[start : start + count]
        kept[start : start + count] = part >= np.partition(part, count - most)[count - most]
    rows = np.flatnonzero(kept)
    order = rows[np.lexsort((-time[rows], of[rows]))]
    rank = np.arange(len(order)) - np.searchsorted(of[order], of[order])
    longest: Ids = order[rank < most]
    return longest
