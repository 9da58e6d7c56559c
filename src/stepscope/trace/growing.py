"""Columns that grow as a file is read: one array each, not one for every piece of the file."""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from stepscope.arrays import Array
from stepscope.trace import spill
from stepscope.trace.spill import SpillFile

_LEAST_BYTES = 1 << 16
_HUGE_BYTES = 4 << 20  # from this size on in huge pages, as NumPy's own: few faults, little waste


class GrowingArray:
    """An array to which rows are appended.

    Arrays of pieces that are joined in the end would need memory twice, and leave holes in it. This
    one is a mapping that the kernel extends without a copy where it can, of a file once it is
    large.

    Args:
        dtype: of the elements.

    Example:
        >>> times = GrowingArray("i8")
        >>> times.append([5, 7])
        >>> times.fill(-1, until=3)
        >>> times.finished().tolist()
        [5, 7, -1]
    """

    def __init__(self, dtype: DTypeLike) -> None:
        self._dtype = np.dtype(dtype)
        self._memory: mmap.mmap | None = None
        self._room: Array = np.empty(0, self._dtype)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def append(self, values: Array) -> None:
        """Add some rows."""
        self._extend(values, len(values))

    def fill(self, value: Any, until: int) -> None:
        """Add a value as often as there are fewer than `until` rows."""
        if until > self._length:
            self._extend(value, until - self._length)

    def finished(self) -> Array:
        """The rows, shape (n,), without a copy; nothing can be added afterwards."""
        if self._length:
            self._reserve(self._length)
        return self._room

    def _extend(self, values: ArrayLike, count: int) -> None:
        end = self._length + count
        if end > len(self._room):
            least = -(-_LEAST_BYTES // self._dtype.itemsize)
            self._reserve(max(end + (end >> 1), least))
        self._room[self._length : end] = values
        self._length = end

    def _reserve(self, rows: int) -> None:
        size = rows * self._dtype.itemsize
        self._room = self._room[:0].copy()  # memory that an array shows cannot be resized
        self._memory = _memory(size) if self._memory is None else _resized(self._memory, size)
        if isinstance(self._memory, SpillFile):
            self._memory.release()
        elif size >= _HUGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._room = np.frombuffer(self._memory, self._dtype)


def _memory(size: int) -> mmap.mmap:
    """Memory that is taken page by page, as it is written to; a file if that is large."""
    if (file := SpillFile.of(size)) is not None:
        return file
    if not hasattr(mmap, "MAP_PRIVATE"):  # on Windows
        return mmap.mmap(-1, size)
    return mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _resized(memory: mmap.mmap, size: int) -> mmap.mmap:
    """The same memory with another size, copied where that cannot be had otherwise."""
    if isinstance(memory, SpillFile) or len(memory) < spill.LEAST_BYTES:
        with suppress(SystemError, OSError):  # not on this system, or the disk is full
            memory.resize(size)
            return memory
    result = _memory(size)
    kept = min(size, len(memory))
    result[:kept] = memoryview(memory)[:kept]
    return result
