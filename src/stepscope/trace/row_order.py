"""Orders of rows and runs of equal keys."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.arrays import IntArray, Mask


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
