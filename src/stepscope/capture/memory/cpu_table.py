"""The CPU allocator's own table of what is allocated.

torch's CPU allocator keeps a table of all its allocations while the flag
`caffe2_report_cpu_memory_usage` is set, and reports the total with each allocation to a profiler
that asks for memory. The flag, set before anything is allocated, therefore makes the reported
totals absolute, whatever thread allocates. It costs about 1 µs for each allocation, so it is
cleared before steps are timed.

Source: c10/core/CPUAllocator.cpp (ProfiledCPUMemoryReporter).
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch

_FLAG = "FLAGS_caffe2_report_cpu_memory_usage"
_LIBRARIES = ("libc10.so", "libc10.dylib", "c10.dll")


class CpuTable:
    """The CPU allocator's own table of what is allocated."""

    def __init__(self) -> None:
        self._flag = _find_flag()

    @property
    def exact(self) -> bool:
        """Whether totals will be absolute: this build of torch has the flag."""
        return self._flag is not None

    def start(self) -> None:
        """Call before the first allocation."""
        if self._flag is not None:
            self._flag.value = True

    def stop(self) -> None:
        """From now on allocating costs nothing more, and totals mean nothing."""
        if self._flag is not None:
            self._flag.value = False


def _find_flag() -> Any:
    folder = Path(torch.__file__).parent / "lib"
    for name in _LIBRARIES:
        try:
            return ctypes.c_bool.in_dll(ctypes.CDLL(str(folder / name)), _FLAG)
        except (OSError, ValueError):
            continue
    return None
