"""The distinct rows of some columns, so that work per row is done once per distinct row."""

from __future__ import annotations

import numpy as np

from stepscope.arrays import Codes

_TABLE = 1 << 22  # up to this size, a table of all possible rows is faster than sorting


def distinct_rows(*columns: Codes) -> tuple[list[tuple[int, ...]], Codes]:
    """The distinct rows of columns of equal length, and the index of each row among them.

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
    """A column as codes below a limit, and that limit."""
    if not len(column):
        return column, 1
    least, most = int(column.min()), int(column.max())
    if most - least < _TABLE:
        return column - least, most - least + 1
    values, part = np.unique(column, return_inverse=True)
    return part, len(values)


def _numbered(code: Codes, size: int) -> tuple[Codes, int]:
    """Codes below `size` renumbered without gaps, and their number."""
    if size > _TABLE:
        values, number = np.unique(code, return_inverse=True)
        return number, len(values)
    used = np.zeros(size, np.bool_)
    used[code] = True
    return (np.cumsum(used) - 1)[code], int(used.sum())
