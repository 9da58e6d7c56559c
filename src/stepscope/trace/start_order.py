"""The order of events by start, compiled, with the same in Python where that is missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from stepscope.arrays import IntArray, Times
from stepscope.compiled.build import LIBRARY
from stepscope.compiled.library import function


def start_order(start: Times, duration: Times, library: Path = LIBRARY) -> IntArray | None:
    """The order by start, of equal starts the longest first, else as it is.

    Args:
        start: int64, shape (n,), ns.
        duration: int64, shape (n,), ns.
        library: the compiled library.

    Returns:
        The row of the first event first, shape (n,); None where every row is in its place.

    Example:
        >>> start_order(np.array([3, 1, 1]), np.array([1, 1, 2])).tolist()
        [2, 1, 0]
    """
    path = function("stepscope_start_order", library)
    if path is None:
        return start_order_in_python(start, duration)
    order = np.empty(len(start), np.int32)
    times = (np.ascontiguousarray(times, np.int64) for times in (start, duration))
    found = path(len(start), *times, order)
    if not found:
        return start_order_in_python(start, duration)
    return order if found == 1 else None


def start_order_in_python(start: Times, duration: Times) -> IntArray | None:
    """The same.

    A stable sort by one column is fast where it is nearly sorted, as recordings are.
    """
    order = np.argsort(start, kind="stable")
    same = np.diff(start[order]) == 0
    if same.any():
        tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
        rows = order[tied]
        order[tied] = rows[np.lexsort((-duration[rows], start[rows]))]
    return None if (order[1:] > order[:-1]).all() else order
