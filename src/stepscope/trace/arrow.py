"""NumPy columns as Arrow arrays, without a copy.

`pyarrow.array` is not used because it imports pandas if that is installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from stepscope.arrays import Array, Mask, Octets
from stepscope.trace.spill import joined


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


def arrow_bytes(values: Sequence[bytes]) -> pa.LargeBinaryArray:
    """An array of byte strings."""
    return _byte_strings(values, b"".join(values))


def arrow_octets(values: Sequence[Octets]) -> pa.LargeBinaryArray:
    """The same of byte strings that are arrays, in a file if they are large."""
    return _byte_strings(values, joined(values, np.uint8))


def _byte_strings(values: Sequence[bytes | Octets], text: bytes | Octets) -> pa.LargeBinaryArray:
    ends = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=ends[1:])
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(text)]
    return pa.Array.from_buffers(pa.large_binary(), len(values), buffers)


def bytes_of(array: pa.LargeBinaryArray) -> list[Octets]:
    """The byte strings of an array, without a copy."""
    _, ends, values = array.buffers()
    text = np.frombuffer(values or b"", np.uint8)
    bounds = np.frombuffer(ends, np.int64)[array.offset : array.offset + len(array) + 1].tolist()
    return [text[start:end] for start, end in pairwise(bounds)]
