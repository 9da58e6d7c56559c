"""What torch's own allocators record: the CPU's table of totals, and the history of CUDA."""

import ctypes
from pathlib import Path
from typing import Any

import torch

_FLAG = "FLAGS_caffe2_report_cpu_memory_usage"
_LIBRARIES = ("libc10.so", "libc10.dylib", "c10.dll")


class CpuTable:
    """The CPU allocator's own table of what is allocated.

    torch keeps it while the flag `caffe2_report_cpu_memory_usage` is set, and reports the total
    with each allocation to a profiler that asks for memory. Set before anything is allocated, the
    flag makes these totals absolute, whatever thread allocates. It costs about 1 µs for each
    allocation, so it is cleared before steps are timed.

    Source: c10/core/CPUAllocator.cpp (ProfiledCPUMemoryReporter).
    """

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


_MOST_EVENTS = 200_000  # of the ring: some steps of a large model
_cuda: Any = torch.cuda


class CudaHistory:
    """Records allocations on every CUDA device from the moment at which the script first uses one.

    It is a ring of events with their Python stacks. A script that never uses CUDA is left alone:
    starting it here would break forked workers.

    Source: torch/cuda/memory.py (`_record_memory_history`, `_dump_snapshot`).
    """

    def __init__(self) -> None:
        self._is_on = False
        self._is_closed = False
        if _cuda.is_available():
            _cuda._lazy_call(self._start)

    def _start(self) -> None:
        if self._is_closed:
            return
        _cuda.memory._record_memory_history(
            enabled="all", context="all", stacks="python", max_entries=_MOST_EVENTS
        )
        self._is_on = True

    @property
    def has_events(self) -> bool:
        return self._is_on

    def write(self, path: Path) -> None:
        """Write the history and the state of every segment, a pickle, to `path`."""
        _cuda.memory._dump_snapshot(str(path))

    def close(self) -> None:
        self._is_closed = True
        if self._is_on:
            self._is_on = False
            _cuda.memory._record_memory_history(enabled=None)
