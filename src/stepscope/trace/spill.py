"""Large arrays in files without a name, so that memory does not limit the size of a trace.

The kernel writes their pages to disk and takes the memory back when it needs to. The files have no
name from the start, so nothing is left of them when the process ends, however it ends.
"""

import mmap
import os
import tempfile
import weakref
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import BinaryIO

import numpy as np
from numpy.typing import DTypeLike

from stepscope.base.arrays import Array
from stepscope.trace.cache_folder import cache_folder

LEAST_BYTES = 48 << 20  # a larger array lies in a file; those of 1 GB of JSON are smaller
_PIECE_BYTES = 1 << 24  # of a file, at a time; chosen: little memory, few calls


class SpillFile(mmap.mmap):
    """Memory that is a file without a name, of which every byte has room on the disk.

    Without that room, writing to the memory of a full disk would end the process.
    """

    _file: BinaryIO

    @classmethod
    def of(cls, size: int) -> "SpillFile | None":
        """Memory of `size` bytes; None if it is small, or there is no room on the disk."""
        if size < LEAST_BYTES or not hasattr(os, "posix_fallocate"):
            return None
        with suppress(OSError), ExitStack() as stack:
            file = stack.enter_context(tempfile.TemporaryFile(prefix="stepscope-", dir=_folder()))
            os.posix_fallocate(file.fileno(), 0, size)
            memory = cls(file.fileno(), size)
            memory._file = file
            weakref.finalize(memory, stack.pop_all().close)
            return memory
        return None

    def resize(self, newsize: int) -> None:
        """Extend or shorten it; raises OSError where the disk has no room."""
        os.posix_fallocate(self._file.fileno(), 0, newsize)
        super().resize(newsize)

    def release(self) -> None:
        """Unmap its pages until they are used again: they no longer count as the process's."""
        self.madvise(mmap.MADV_DONTNEED)


def copy_of(file: BinaryIO) -> bytes | SpillFile:
    """All of a file, which others may shorten: reading a mapped one then would end the process."""
    size = os.fstat(file.fileno()).st_size
    memory = SpillFile.of(size)
    while memory and (piece := file.read(min(size - memory.tell(), _PIECE_BYTES))):
        memory.write(piece)
        memory.release()
    return memory or file.read()


def spilled(values: Array) -> Array:
    """The same values in a file, if they are large and in memory, else themselves."""
    if values.nbytes < LEAST_BYTES or not _is_in_memory(values):
        return values
    memory = SpillFile.of(values.nbytes)
    if memory is None:
        return values
    result: Array = np.frombuffer(memory, values.dtype)
    result[:] = values
    memory.release()
    return result


def joined(parts: Sequence[Array], dtype: DTypeLike) -> Array:
    """Arrays end to end, in a file if that is large."""
    length = sum(map(len, parts))
    memory = SpillFile.of(length * np.dtype(dtype).itemsize)
    result: Array = np.empty(length, dtype) if memory is None else np.frombuffer(memory, dtype)
    return np.concatenate(parts, out=result) if parts else result


def _is_in_memory(values: Array) -> bool:
    """Whether they are neither in a file nor one value in every row."""
    owner = values
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    return owner.flags.owndata and values.strides != (0,)


def _folder() -> str | None:
    """The cache's folder, which is rarely in memory itself; None for the usual one."""
    folder = cache_folder()
    if folder is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder)
