"""Orders of rows."""

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
