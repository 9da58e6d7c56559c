"""NumPy columns as Arrow arrays, without a copy.

`pyarrow.array` is not used because it imports pandas if that is installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from stepscope.arrays import Array, Mask


def arrow_numbers(values: Array, null: Mask | None = None) -> pa.Array:
    """An Arrow array over the memory of `values`.

    Args:
        values: integers or floats, shape (n,).
        null: rows that are null in Arrow; their numbers stay in memory below the mask.

    Example:
        >>> arrow_numbers(np.array([7, -1]), np.array([False, True])).to_pylist()
        [7, None]
    """
    values = np.ascontiguousarray(values)
    valid = None
    if null is not None and null.any():
        valid = pa.py_buffer(np.packbits(~null, bitorder="little"))
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(values)])


def arrow_text(codes: Array, values: Sequence[str]) -> pa.DictionaryArray:
    """A dictionary array; a negative code is null."""
    texts = arrow_bytes([value.encode() for value in values]).view(pa.large_string())
    return pa.DictionaryArray.from_arrays(arrow_numbers(codes, codes < 0), texts)


def arrow_bytes(values: Sequence[Any]) -> pa.LargeBinaryArray:
    """An array of byte strings (anything with the buffer interface)."""
    ends = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=ends[1:])
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.large_binary(), len(values), buffers)
