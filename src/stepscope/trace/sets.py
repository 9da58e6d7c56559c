"""Sets and distinct values of integers, as arrays.

`np.unique` is avoided: it imports NumPy's masked arrays, which takes a twentieth of the time to
read a 30 MB trace, and it hashes where sorting is as fast."""

from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

import numpy as np

from stepscope.base.arrays import Array, Codes, Ids32, IntArray, Mask
from stepscope.base.compiled.library import function
from stepscope.trace.columns import MANY
from stepscope.trace.row_order import begins_run

_FEW = 4  # codes that are compared one by one; more are looked up


def members(codes: IntArray, chosen: Mask) -> Mask:
    """The rows whose code is chosen: `chosen[codes]`, faster where few are; -1 never is."""
    wanted = chosen.nonzero()[0]
    if len(wanted) <= _FEW:
        return one_of(codes, wanted.tolist())
    if len(codes) >= MANY and codes.dtype.kind == "i" and codes.strides != (0,):
        is_chosen = np.empty(len(codes), np.bool_)
        rows, table = np.ascontiguousarray(codes), np.ascontiguousarray(chosen)
        if function("stepscope_members")(rows.itemsize, len(rows), rows, len(table), table, is_chosen):
            return is_chosen
    return np.append(chosen, False)[codes]


def one_of(codes: IntArray, wanted: Sequence[int]) -> Mask:
    """The rows whose code is one of a few that are wanted; many are searched for.

    Example:
        >>> one_of(np.array([0, 2, -1]), [2]).tolist()
        [False, True, False]
    """
    if len(wanted) > _FEW:
        return np.isin(codes, wanted)
    result = codes == wanted[0] if len(wanted) else np.zeros(len(codes), np.bool_)
    for code in wanted[1:]:
        result |= codes == code
    return result


def mask_of(rows: IntArray, count: int) -> Mask:
    """The mask of some rows of `count`.

    Example:
        >>> mask_of(np.array([2, 0]), 3).tolist()
        [True, False, True]
    """
    mask = np.zeros(count, np.bool_)
    mask[rows] = True
    return mask


def distinct(values: Array) -> Array:
    """The distinct values of an array of integers of any shape, sorted, of the same type."""
    if values.size and np.issubdtype(values.dtype, np.signedinteger):
        least, most = values.min(), values.max()
        if int(most) - int(least) < values.size:
            is_used = np.zeros(int(most) - int(least) + 1, np.bool_)
            is_used[np.subtract(values, least, dtype=np.int64)] = True
            return (np.flatnonzero(is_used) + int(least)).astype(values.dtype)
    ordered = np.sort(values, axis=None)
    return ordered[begins_run(ordered)]


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
            values, code = numbered(code, size)
            size = len(values)
        code, size = code * count + part, size * count
    values, number = numbered(code, size)
    first = np.zeros(len(values), np.int64)
    first[number[::-1]] = np.arange(len(number))[::-1]
    return list(zip(*(column[first].tolist() for column in columns), strict=True)), number


def _coded(column: Codes) -> tuple[Codes, int]:
    """A column as codes below a limit, and that limit."""
    if not len(column):
        return column, 1
    least, most = int(column.min()), int(column.max())
    if most - least < _TABLE:
        return column - least, most - least + 1
    values, part = np.unique(column, return_inverse=True)
    return part, len(values)


def numbered(codes: Codes, size: int) -> tuple[Codes, Codes]:
    """The distinct ones of codes below `size`, ascending, and which of them each is."""
    if size > _TABLE:
        return np.unique(codes, return_inverse=True)
    used = mask_of(codes, size)
    return np.flatnonzero(used), (np.cumsum(used) - 1)[codes]


Value = TypeVar("Value", bound=Hashable)


class Interner(dict[Value, int]):
    """Codes of distinct values; `list(interner)` gives the values by code.

    Example:
        >>> names = Interner()
        >>> [names[name] for name in ("mm", "add", "mm")], list(names)
        ([0, 1, 0], ['mm', 'add'])
    """

    def __missing__(self, value: Value) -> int:
        code = self[value] = len(self)
        return code

    def codes(self, values: Iterable[Value], count: int = -1) -> Ids32:
        """The code of each value, int32; their number, if known, saves time."""
        return np.fromiter(map(self.__getitem__, values), np.int32, count)
