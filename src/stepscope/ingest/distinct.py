"""The distinct rows of some columns, so that what is worked out row by row is worked out once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.int64]
_TABLE = 1 << 22  # up to here a table of all possible rows is quicker than to sort those there are


def distinct_rows(*columns: Codes) -> tuple[list[tuple[int, ...]], Codes]:
    """The distinct rows of some columns of one length, and for each row which of them it is.

    Example:
        >>> distinct_rows(np.array([7, 7, 7]), np.array([1, 0, 1]))
        ([(7, 0), (7, 1)], array([1, 0, 1]))
    """
    code, size = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        part, count = _coded(column)
        if size * count > _TABLE:
            code, size = _numbered(code, size)
        code, size = code * count + part, size * count
    number, count = _numbered(code, size)
    first = np.zeros(count, np.int64)
    first[number[::-1]] = np.arange(len(number))[::-1]
    keys = zip(*(column[first].tolist() for column in columns), strict=True)
    return list(keys), number


def _coded(column: Codes) -> tuple[Codes, int]:
    """A column as numbers below a limit, and that limit."""
    if not len(column):
        return column, 1
    least, most = int(column.min()), int(column.max())
    if most - least < _TABLE:
        return column - least, most - least + 1
    values, part = np.unique(column, return_inverse=True)
    return part, len(values)


def _numbered(code: Codes, size: int) -> tuple[Codes, int]:
    """Codes below `size`, numbered without gaps, and how many there are."""
    if size > _TABLE:
        values, number = np.unique(code, return_inverse=True)
        return number, len(values)
    used = np.zeros(size, np.bool_)
    used[code] = True
    return (np.cumsum(used) - 1)[code], int(used.sum())
