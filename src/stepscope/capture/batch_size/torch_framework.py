"""Memory, time and device of PyTorch's training steps.

Memory comes from torch's allocators. Watching allocations costs time, which the timed steps must
not pay: the allocator's table is switched off before them.
"""

from __future__ import annotations

from typing import Any

import torch

from stepscope.capture.batch_size.allocations import (
    cpu_peak,
    gpu_devices,
    gpu_peak,
    reset_gpu_peaks,
)
from stepscope.capture.batch_size.cuda_step_clock import CudaStepClock
from stepscope.capture.batch_size.energy_counters import PowerMeter, cpu_counters, gpu_counters
from stepscope.capture.batch_size.framework import Peak, main_memory
from stepscope.capture.batch_size.input_sizes import InputSizes
from stepscope.capture.batch_size.loaded_samples import LoadedSamples
from stepscope.capture.batch_size.memory_recording import Recording
from stepscope.capture.batch_size.request import Request
from stepscope.capture.batch_size.step_clock import StepClock
from stepscope.capture.batch_size.step_counts import StepCounts
from stepscope.capture.memory.allocators import CpuTable
from stepscope.capture.options import RecordOptions
from stepscope.capture.profiler_window import ProfilerWindow

Json = dict[str, Any]


class TorchFramework:
    """Measures what torch allocates and how long its devices work.

    Args:
        request: whether to record the memory steps as a capture.
        counts: gets the samples and inputs of each step.
    """

    least_memory_steps = 1

    def __init__(self, request: Request, counts: StepCounts) -> None:
        self._table = CpuTable()
        self._table.start()
        self.recording = Recording(request) if request.capture else None
        self._window: ProfilerWindow | None = None
        InputSizes(counts)
        LoadedSamples(counts)

    def begin_memory(self, step: int) -> None:
        """Watch allocations from now on."""
        reset_gpu_peaks()
        if self.recording:
            self._window = self.recording.start(step)
        else:
            self._window = ProfilerWindow(RecordOptions(memory=True, shapes=False), step, None)
            self._window.begin_step()

    def end_memory_step(self, *, last: bool) -> None:
        """A step whose allocations are watched ends here."""
        assert self._window is not None
        self._window.end_step()
        if not last:
            self._window.begin_step()

    def peak(self) -> Peak:
        """The greatest totals of torch's allocators."""
        assert self._window is not None
        window, self._window = self._window, None
        if self.recording:
            self.recording.stop(list(window.complete))
        window.close()
        found = Peak(*gpu_peak()) if gpu_devices() else Peak(cpu_peak(window.profiler))
        if self.recording:
            self.recording.write()
        self._table.stop()
        return found

    def clock(self) -> StepClock:
        """A clock on the device."""
        return CudaStepClock() if gpu_devices() else StepClock()

    def power_meter(self) -> PowerMeter:
        """NVML's counters on a GPU, else RAPL's."""
        devices = gpu_devices()
        if not devices:
            return PowerMeter("RAPL", cpu_counters())
        properties = [torch.cuda.get_device_properties(device) for device in devices]
        uuids = [f"GPU-{one.uuid}" for one in properties if hasattr(one, "uuid")]
        return PowerMeter("NVML", gpu_counters(uuids) if len(uuids) == len(devices) else [])

    def facts(self) -> Json:
        """What ran, and on what."""
        return {
            "framework": "pytorch",
            "version": str(torch.__version__),
            "device": _device(),
            "threads": torch.get_num_threads(),
            "exact": self._table.exact,
        }


def _device() -> Json:
    devices = gpu_devices()
    if not devices:
        return {"type": "cpu", "name": None, "memory_bytes": main_memory()}
    properties = torch.cuda.get_device_properties(devices[0])
    return {"type": "cuda", "name": properties.name, "memory_bytes": properties.total_memory}
