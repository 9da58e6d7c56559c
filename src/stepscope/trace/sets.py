"""Sets of integers as sorted arrays.

`np.unique` is avoided: it imports NumPy's masked arrays, which takes a twentieth of the time to
read a 30 MB trace, and it hashes where sorting is as fast.
"""

from __future__ import annotations

import numpy as np

from stepscope.arrays import Array, IntArray, Mask
from stepscope.trace.row_order import begins_run

_FEW = 4


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
    if len(wanted) > _FEW:
        found: Mask = np.append(chosen, False)[codes]
        return found
    result = np.zeros(len(codes), np.bool_)
    for code in wanted:
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
