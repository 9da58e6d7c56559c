"""Sets of integers as sorted arrays.

`np.unique` is avoided: it imports NumPy's masked arrays, which takes a twentieth of the time to
read a 30 MB trace, and it hashes where sorting is as fast.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepscope.arrays import Array, IntArray, Mask
from stepscope.compiled.library import function
from stepscope.trace.row_order import begins_run

_FEW = 4
_MANY = 1 << 12  # for fewer rows, calling the library takes longer than NumPy


def members(codes: IntArray, chosen: Mask) -> Mask:
    """The rows whose code is chosen: `chosen[codes]`, faster where few are.

    Args:
        codes: integers, shape (n,), -1 for none, which is not chosen.
        chosen: of each code, shape (codes,).

    Returns:
        bool, shape (n,).

    Example:
        >>> members(np.array([0, 2, -1]), np.array([False, False, True])).tolist()
        [False, True, False]
    """
    wanted = np.flatnonzero(chosen).tolist()
    if len(wanted) <= _FEW:
        return one_of(codes, wanted)
    if len(codes) >= _MANY and codes.dtype.kind == "i" and codes.strides != (0,):
        found = np.empty(len(codes), np.bool_)
        rows, table = np.ascontiguousarray(codes), np.ascontiguousarray(chosen)
        if function("stepscope_members")(rows.itemsize, len(rows), rows, len(table), table, found):
            return found
    return np.append(chosen, False)[codes]


def one_of(codes: IntArray, wanted: Sequence[int]) -> Mask:
    """The rows whose code is one of a few that are wanted.

    Args:
        codes: integers, shape (n,).
        wanted: codes; many are searched for.

    Returns:
        bool, shape (n,).

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


def distinct(values: Array) -> Array:
    """The distinct values of an array, sorted.

    Args:
        values: integers, of any shape.

    Returns:
        Each value once, shape (n,), of the same type.

    Example:
        >>> distinct(np.array([3, 1, 3])).tolist()
        [1, 3]
    """
    if values.size and np.issubdtype(values.dtype, np.signedinteger):
        least, most = values.min(), values.max()
        if int(most) - int(least) < values.size:
            found = np.zeros(int(most) - int(least) + 1, np.bool_)
            found[np.subtract(values, least, dtype=np.int64)] = True
            return (np.flatnonzero(found) + int(least)).astype(values.dtype)
    ordered = np.sort(values, axis=None)
    return ordered[begins_run(ordered)]
