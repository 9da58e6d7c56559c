"""The C heap of a server that runs for days: what editors leave goes back to the system.

glibc gives threads heaps of their own, up to eight for each core. Documents are parsed in any
thread of a pool, so each heap grows to the largest texts that it ever held, and none can use what
is free in another.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from stepscope.trace.freed_memory import glibc

_ARENA_MAX = -8  # of mallopt(3), from glibc's malloc.h
_PAUSE_S = 10.0  # it takes some milliseconds


def share_heap() -> None:
    """Let all threads that begin from now on use one heap; elsewhere than with glibc, nothing."""
    library = glibc()
    if library is not None:
        library.mallopt(_ARENA_MAX, 1)


class ReturnedMemory:
    """Returns free memory to the system, at most once in a while.

    Args:
        clock: seconds, of any origin.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()

    def return_memory(self) -> bool:
        """Return what is free now, unless that was done shortly before; whether it was done."""
        library, now = glibc(), self._clock()
        if library is None or now - self._last < _PAUSE_S:
            return False
        self._last = now
        library.malloc_trim(0)
        return True
