"""The bytes that torch's allocators hand out, exactly.

torch's CPU allocator keeps a table of all its allocations while the flag
`caffe2_report_cpu_memory_usage` is set, and reports the total with each allocation to a profiler
that asks for memory. The flag, set before anything is allocated, therefore makes the reported
totals absolute, whatever thread allocates. It costs about 1 µs for each allocation, so it is
cleared before steps are timed.

Source: c10/core/CPUAllocator.cpp (ProfiledCPUMemoryReporter).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
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


def cpu_peak(profiler: Any) -> int:
    """The greatest total of CPU bytes that a stopped torch.profiler was told of."""
    events = profiler.profiler.kineto_results.experimental_event_tree()
    totals = (_total(event) for event in _walk(events))
    return max((total for total in totals if total is not None), default=0)


def _total(event: Any) -> int | None:
    tag, fields = event.typed
    if "Allocation" not in str(tag) or fields.device.type != "cpu":
        return None
    return int(fields.total_allocated)


def _walk(events: Any) -> Iterator[Any]:
    pending = list(events)
    while pending:
        event = pending.pop()
        yield event
        pending.extend(event.children)


def gpu_devices() -> list[int]:
    """The CUDA devices that this process has memory on."""
    cuda: Any = torch.cuda
    if not (cuda.is_available() and cuda.is_initialized()):
        return []
    return [i for i in range(cuda.device_count()) if cuda.memory_reserved(i)]


def reset_gpu_peaks() -> None:
    """Forget the peaks so far."""
    for device in gpu_devices():
        torch.cuda.reset_peak_memory_stats(device)


def gpu_peak() -> tuple[int, int]:
    """Peak bytes allocated and reserved since the reset, on the device that has most of them."""
    peaks = [
        (torch.cuda.max_memory_allocated(i), torch.cuda.max_memory_reserved(i))
        for i in gpu_devices()
    ]
    return max(peaks, default=(0, 0))
