"""The greatest totals that torch's allocators reached, exactly."""

from __future__ import annotations

from typing import Any

import torch

from stepscope.capture.profiler_window import profiler_events


def cpu_peak(profiler: Any) -> int:
    """The greatest total of CPU bytes that a stopped torch.profiler recorded."""
    totals = (_total(event) for event in profiler_events(profiler))
    return max((total for total in totals if total is not None), default=0)


def _total(event: Any) -> int | None:
    tag, fields = event.typed
    if "Allocation" not in str(tag) or fields.device.type != "cpu":
        return None
    return int(fields.total_allocated)


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
