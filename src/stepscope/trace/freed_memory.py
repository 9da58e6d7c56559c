"""Keeps memory that is freed, for what reads a large trace array by array.

Each derived column takes and frees several arrays as long as the trace. glibc returns arrays of 32
MiB and more to the kernel, which clears their pages when the next one needs them: a third of the
time to read 4 GB of JSON. The allocator belongs to the whole process, so only stepscope's commands
use this; `stepscope.open` leaves the allocator of a user's program as it is.
"""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

# Parameters of mallopt(3), from glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -3, -4, -8
_KEPT = {_TRIM_THRESHOLD: 2**31 - 1, _MMAP_MAX: 0, _ARENA_MAX: 1}
# What glibc comes to by itself once a program has freed an array of 32 MiB.
_USUAL = {_TRIM_THRESHOLD: 64 << 20, _MMAP_THRESHOLD: 32 << 20, _MMAP_MAX: 1 << 16, _ARENA_MAX: 0}


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Keep freed memory for the arrays that follow, until the end of the block.

    Elsewhere than with glibc nothing changes.
    """
    library = glibc()
    if library is None:
        yield
        return
    _set(library, _KEPT)
    try:
        yield
    finally:
        _set(library, _USUAL)
        library.malloc_trim(0)


@cache
def glibc() -> ctypes.CDLL | None:
    """The C library, if it is one whose allocator can be set; None elsewhere."""
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None


def _set(library: ctypes.CDLL, parameters: dict[int, int]) -> None:
    for parameter, value in parameters.items():
        library.mallopt(parameter, value)
