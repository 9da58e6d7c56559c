"""How many steps the profiler may record before its events take too much memory.

torch.profiler keeps its events until it stops, and then needs several times as much to sort and
write them: 70,000 events take 75 MB while they are recorded and 0.5 GB at the end (torch 2.13).
"""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

from stepscope.record.patch import ignoring

_AT_THE_END = 7  # times what is kept while recording; 6.4 was measured, in x86 Linux with torch 2.13
_SHARE = 0.5  # of the memory that is available as recording begins; chosen: the script needs some, too
_EARLY_SHARE = 0.25  # of that; chosen: most early windows have three steps of a few thousand events
_MEGABYTE = 1 << 20  # bytes
_CGROUP = Path("/sys/fs/cgroup")


class MemoryBudget:
    """Measures at the end of each recorded step whether one more fits."""

    def __init__(
        self,
        megabytes: int,  # what the recorder may use; 0 for half of what is available now
        early: bool = False,  # for steps of the warm-up, kept while the requested ones are recorded
        in_use: Callable[[], int | None] | None = None,  # the bytes that the process has allocated, if known
    ) -> None:
        self._in_use = in_use or bytes_in_use
        available = megabytes * _MEGABYTE if megabytes else (available_bytes() or 0) * _SHARE
        self.bytes = int(available * (_EARLY_SHARE if early else 1))
        self._before = self._in_use()
        self._growth: list[int] = []

    def has_room(self) -> bool:
        """Whether one more step fits, now that a step has ended.

        The script's own memory may grow in some steps; what all steps add is the profiler's.
        """
        now = self._in_use()
        if not self.bytes or now is None or self._before is None:
            return True
        self._growth.append(max(now - self._before, 0))
        self._before = now
        return min(self._growth) * (len(self._growth) + 1) * _AT_THE_END <= self.bytes


class _Mallinfo(ctypes.Structure):
    """`struct mallinfo2` of glibc 2.33; `hblkhd` and `uordblks` are what is in use."""

    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")),
    ]


def bytes_in_use() -> int | None:
    """What the process has allocated, or holds in memory; None where neither is known.

    Freed memory that the process keeps would hide what is recorded into it, so the C library is asked first.
    """
    with ignoring(OSError, AttributeError, TypeError):
        mallinfo = ctypes.CDLL(None).mallinfo2
        mallinfo.restype = _Mallinfo
        info = mallinfo()
        return int(info.hblkhd + info.uordblks)
    with ignoring(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return None


def available_bytes() -> int | None:
    """The memory that the process may still get: the machine's, or its container's."""
    found = []
    with ignoring(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    with ignoring(OSError, ValueError):
        limit, used = ((_CGROUP / name).read_text() for name in ("memory.max", "memory.current"))
        found.append(max(int(limit) - int(used), 0))
    return min(found, default=None)
