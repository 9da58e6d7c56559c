"""Orders of rows and runs of equal keys."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.arrays import IntArray, Mask, Rows

_SHORT = np.dtype(np.uint16)


def inverse(order: IntArray) -> NDArray[np.int64]:
    """The inverse of a permutation: the position of each row after sorting by `order`.

    Args:
        order: each row once, shape (n,).

    Returns:
        int64, shape (n,).

    Example:
        >>> inverse(np.array([2, 0, 1])).tolist()
        [1, 2, 0]
    """
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return place


def stable_order(keys: IntArray) -> Rows:
    """The order of keys, equal ones as they are.

    Few possible keys are sorted by counting, which NumPy does for 16 bits.

    Args:
        keys: integers, shape (n,).

    Returns:
        The row of the smallest key first, shape (n,).

    Example:
        >>> stable_order(np.array([7, 5, 7, 5])).tolist()
        [1, 3, 0, 2]
    """
    if len(keys) and keys.dtype.itemsize > _SHORT.itemsize:
        least, most = keys.min(), keys.max()
        if int(most) - int(least) <= np.iinfo(_SHORT).max:
            keys = (keys - least).astype(_SHORT)
    return np.argsort(keys, kind="stable")


def begins_run(keys: IntArray) -> Mask:
    """The first row of each run of equal keys; bool, shape (n,).

    Example:
        >>> begins_run(np.array([5, 5, 7])).tolist()
        [True, False, True]
    """
    begins = np.ones(len(keys), np.bool_)
    begins[1:] = keys[1:] != keys[:-1]
    return begins


def ends_run(keys: IntArray) -> Mask:
    """The last row of each run of equal keys; bool, shape (n,)."""
    ends = np.ones(len(keys), np.bool_)
    ends[:-1] = keys[1:] != keys[:-1]
    return ends
