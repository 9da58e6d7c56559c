"""From the end of one step to the end of the next: what is measured when.

    step   0 … warmup-1     memory steps             1         timed steps
           observed         allocations watched,     settles   nothing at work but a clock
                            perhaps recorded

Memory comes first, because watching allocations from the very first one costs time that the timed
steps must not pay.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from stepscope.capture.batch_size.allocations import (
    cpu_peak,
    gpu_devices,
    gpu_peak,
    reset_gpu_peaks,
)
from stepscope.capture.batch_size.energy_counters import PowerMeter, cpu_counters, gpu_counters
from stepscope.capture.batch_size.input_sizes import InputSizes
from stepscope.capture.batch_size.loaded_samples import LoadedSamples
from stepscope.capture.batch_size.memory_recording import Recording
from stepscope.capture.batch_size.request import Request
from stepscope.capture.batch_size.step_clock import StepClock
from stepscope.capture.memory.cpu_table import CpuTable
from stepscope.capture.options import RecordOptions
from stepscope.capture.profiler_window import ProfilerWindow

Json = dict[str, Any]
# Where batches differ in size, so many steps are watched to meet a long one.
_VARIED_STEPS = 8


class Steps:
    """Measures some of the steps, then calls `finish`.

    Args:
        request: what to measure.
        finish: called between two steps with the result.
    """

    def __init__(self, request: Request, finish: Callable[[Json], object]) -> None:
        self.request = request
        self.count = 0
        self._finish = finish
        self._table = CpuTable()
        self._table.start()
        self._sizes = InputSizes()
        self._samples = LoadedSamples()
        self._optimizers: dict[int, Any] = {}
        self._recording = Recording(request) if request.capture else None
        self._window: ProfilerWindow | None = None
        self._watched = 0
        self._bytes = self._reserved = 0
        self._clock: StepClock | None = None
        self._power: PowerMeter | None = None
        self._first_timed = 0

    @property
    def recording(self) -> Recording | None:
        """Where modules and lines go, if a capture is wanted."""
        return self._recording

    def optimizer_stepped(self, optimizer: Any) -> None:
        """An optimizer has stepped, which may or may not end the training step.

        With one more optimizer than was known, what went before were no whole steps.
        """
        if id(optimizer) not in self._optimizers and self._window is None and self._clock is None:
            self.count = 0
        self._optimizers[id(optimizer)] = optimizer
        if self._recording:
            self._recording.optimizers = self._optimizers

    def ended(self) -> None:
        """A training step ends here."""
        self.count += 1
        self._sizes.end_step()
        self._samples.end_step()
        if self._clock is not None:
            self._time()
        elif self._window is not None:
            self._watch()
        elif self.count >= self.request.effort.warmup:
            self._begin_memory()

    def result(self) -> Json:
        """What is known so far."""
        lengths = self._clock.lengths_ms() if self._clock else []
        inputs = self._sizes.steps[self._first_timed :][: len(lengths)]
        samples = self._samples.steps[self._first_timed :][: len(lengths)]
        rows = zip(lengths, inputs, samples, strict=True)
        long = [(ms, count) for ms, size, count in rows if self._sizes.is_long(size)]
        return {
            "outcome": "measured" if lengths else "too_short",
            "batch": self.request.batch,
            "steps_seen": self.count,
            "steps_ms": [ms for ms, _ in long],
            "samples": [count for _, count in long],
            "all_steps_ms": lengths,
            "input_elements": list(self._sizes.range),
            "bytes": self._bytes,
            "reserved_bytes": self._reserved or None,
            "power": _reading(self._power),
            "exact": self._table.exact,
            "device": self._device(),
            "threads": torch.get_num_threads(),
            "torch": str(torch.__version__),
        }

    # -- memory

    def _begin_memory(self) -> None:
        reset_gpu_peaks()
        self._sizes.forget()
        self._samples.forget()
        if self._recording:
            self._window = self._recording.start(self.count)
        else:
            options = RecordOptions(memory=True, shapes=False)
            self._window = ProfilerWindow(options, self.count, None)
            self._window.begin_step()

    def _watch(self) -> None:
        assert self._window is not None
        self._watched += 1
        self._window.end_step()
        wanted = self.request.effort.memory
        if self._watched < (_VARIED_STEPS if self._sizes.varied else wanted):
            self._window.begin_step()
            return
        self._end_memory()

    def _end_memory(self) -> None:
        assert self._window is not None
        window, self._window = self._window, None
        if self._recording:
            self._recording.stop(list(window.complete))
        window.close()
        on_gpu = bool(gpu_devices())
        self._bytes, self._reserved = gpu_peak() if on_gpu else (cpu_peak(window.profiler), 0)
        if self._recording:
            self._recording.write()
        self._table.stop()
        self._clock = StepClock(on_gpu)

    # -- time

    def _time(self) -> None:
        assert self._clock is not None
        self._clock.tick()
        effort = self.request.effort
        if self._clock.steps == 0:
            self._power = _power_meter()
            self._first_timed = len(self._sizes.steps)
        long = sum(map(self._sizes.is_long, self._sizes.steps[self._first_timed :]))
        enough = long >= effort.least and self._clock.elapsed_s >= effort.seconds
        if enough or self._clock.steps >= effort.most:
            self._finish(self.result())

    def _device(self) -> Json:
        devices = gpu_devices()
        if not devices:
            return {"type": "cpu", "name": None, "memory_bytes": _main_memory()}
        properties = torch.cuda.get_device_properties(devices[0])
        return {"type": "cuda", "name": properties.name, "memory_bytes": properties.total_memory}


def _power_meter() -> PowerMeter:
    devices = gpu_devices()
    if not devices:
        return PowerMeter("RAPL", cpu_counters())
    properties = [torch.cuda.get_device_properties(device) for device in devices]
    uuids = [f"GPU-{one.uuid}" for one in properties if hasattr(one, "uuid")]
    return PowerMeter("NVML", gpu_counters(uuids) if len(uuids) == len(devices) else [])


def _reading(power: PowerMeter | None) -> Json | None:
    try:
        return power.reading() if power else None
    except OSError:  # the counter went away
        return None


def _main_memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
