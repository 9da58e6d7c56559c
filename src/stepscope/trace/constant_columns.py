"""Columns that hold one value in every row: they take no memory, however long they are."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from stepscope.arrays import Array
from stepscope.trace.gather import gathered
from stepscope.trace.spill import spilled


def constant(value: Any, length: int, dtype: DTypeLike | None = None) -> Array:
    """One value as a column, shape (length,), which cannot be written to.

    Example:
        >>> constant(-1, 3, np.int32).tolist()
        [-1, -1, -1]
    """
    return np.broadcast_to(np.array(value, dtype), (length,))


def taken(column: Array, rows: ArrayLike) -> Array:
    """Some rows of a column; those of a constant column are constant, many lie in a file.

    Args:
        column: shape (n,).
        rows: m indices, or a mask of shape (n,).

    Returns:
        Shape (m,), of the column's type.
    """
    rows = np.asarray(rows)
    if not rows.size:
        return column[:0]
    if column.strides != (0,) or rows.ndim != 1:
        return spilled(gathered(column, rows))
    count = int(rows.sum()) if rows.dtype == np.bool_ else len(rows)
    return constant(column[0], count, column.dtype)
