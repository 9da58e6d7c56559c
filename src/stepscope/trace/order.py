"""Orders of rows, and runs of equal keys in them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def inverse(order: NDArray[np.integer]) -> NDArray[np.int64]:
    """The inverse of a permutation: the place of each row once rows are taken in an order.

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


def begins_run(keys: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Rows whose key is not that of the row before, the first included; bool, shape (n,).

    Example:
        >>> begins_run(np.array([5, 5, 7])).tolist()
        [True, False, True]
    """
    begins = np.ones(len(keys), np.bool_)
    begins[1:] = keys[1:] != keys[:-1]
    return begins


def ends_run(keys: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Rows whose key is not that of the row after, the last included; bool, shape (n,)."""
    ends = np.ones(len(keys), np.bool_)
    ends[:-1] = keys[1:] != keys[:-1]
    return ends
