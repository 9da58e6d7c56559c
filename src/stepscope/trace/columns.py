"""Columns as arrays: of one value, of some rows of another, side by side, and growing as a file is read."""

import mmap
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from stepscope.base.arrays import Array, IntArray
from stepscope.base.compiled.library import function
from stepscope.trace import spill
from stepscope.trace.spill import SpillFile, spilled

MANY = 1 << 12  # for fewer rows, calling the library takes longer than NumPy
_LEAST_BYTES = 1 << 16  # of a growing column from its first row on
_HUGE_BYTES = 4 << 20  # from this size on in huge pages, as NumPy's own: few faults, little waste


def constant(value: Any, length: int, dtype: DTypeLike | None = None) -> Array:
    """One value as a column, shape (length,), which cannot be written to.

    Example:
        >>> constant(-1, 3, np.int32).tolist()
        [-1, -1, -1]
    """
    column = np.ndarray((length,), (kept := np.array(value, dtype)).dtype, kept, strides=(0,))
    column.flags.writeable = False
    return column


def taken(column: Array, rows: ArrayLike) -> Array:
    """Some rows of a column; those of a constant column are constant, many lie in a file.

    The rows are indices or a mask.
    """
    rows = np.asarray(rows)
    if not rows.size:
        return column[:0]
    if column.strides != (0,) or rows.ndim != 1:
        return spilled(gathered(column, rows))
    count = int(rows.sum()) if rows.dtype == np.bool_ else len(rows)
    return constant(column[0], count, column.dtype)


def gathered(column: Array, rows: IntArray) -> Array:
    """`column[rows]`, in half the time; indices may be negative."""
    if len(rows) >= MANY and _is_plain(column, rows):
        result = np.empty(len(rows), column.dtype)
        sizes = (column.itemsize, len(column), column, len(rows), rows.itemsize, rows)
        if function("stepscope_take")(*sizes, result):
            return result
    return column[rows]


def _is_plain(column: Array, rows: Array) -> bool:
    """Whether both are end to end in memory, in the order of bytes of this machine."""
    return (
        column.ndim == rows.ndim == 1
        and column.flags.c_contiguous
        and rows.flags.c_contiguous
        and rows.dtype.kind == "i"
        and rows.dtype.isnative
        and not column.dtype.hasobject
    )


Same = TypeVar("Same", bound="ParallelArrays")


@dataclass(frozen=True, eq=False)
class ParallelArrays:
    """Arrays of one length, which the fields of a subclass are: each row is one thing."""

    def take(self: Same, rows: ArrayLike) -> Same:
        """Some of the rows, as indices or a mask."""
        index = np.asarray(rows)
        return type(self)(*(getattr(self, column.name)[index] for column in fields(self)))

    @classmethod
    def joined(cls: type[Same], parts: Iterable[Same]) -> Same:
        """The rows of each, one after the other."""
        none, parts = np.zeros(0, np.int64), list(parts)
        columns = ([getattr(part, column.name) for part in parts] for column in fields(cls))
        return cls(*(np.concatenate([none, *column]) for column in columns))


class GrowingArray:
    """An array to which rows are appended.

    Arrays of pieces that are joined in the end would need memory twice, and leave holes in it. This one is a
    mapping that the kernel extends without a copy where it can, of a file once it is large.
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
