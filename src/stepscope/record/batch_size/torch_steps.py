"""Memory, time, device and inputs of PyTorch's training steps, which its optimizers end.

Memory comes from torch's allocators. Watching allocations costs time, which the timed steps must
not pay: the allocator's table is switched off before them.
"""

import itertools
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules import module as torch_module
from torch.utils.data import dataloader

from stepscope.record.batch_size.measured_steps import (
    Peak,
    PowerMeter,
    StepClock,
    StepCounts,
    Steps,
    cpu_counters,
    gpu_counters,
    main_memory,
)
from stepscope.record.batch_size.request import RunRequest
from stepscope.record.capture_file import write_capture
from stepscope.record.manifest import Run, RunResult, build_manifest
from stepscope.record.memory.memory_recorder import (
    CpuTable,
    Creations,
    LineRanges,
    list_storages,
    memory_json,
    tensors_in,
)
from stepscope.record.module_ranges import ModuleRanges
from stepscope.record.module_registry import ModuleRegistry, describe_registry
from stepscope.record.optimizers import OptimizerWatch
from stepscope.record.options import RecordOptions
from stepscope.record.profiler_window import ProfilerWindow, profiler_events
from stepscope.record.step_detector import StepDetector

_Event: Any = torch.cuda.Event
_RECORDING = RecordOptions(warmup=0, steps=0, memory=True)
Json = dict[str, Any]
WHY_NO_STEPS = "no optimizer stepped in its process"


def cpu_peak(profiler: Any) -> int:
    """The greatest total of CPU bytes that a stopped torch.profiler recorded."""
    events = (event.typed for event in profiler_events(profiler))
    totals = (
        int(fields.total_allocated)
        for tag, fields in events
        if "Allocation" in str(tag) and fields.device.type == "cpu"
    )
    return max(totals, default=0)


def gpu_devices() -> list[int]:
    cuda: Any = torch.cuda
    if not cuda.is_initialized():
        return []
    return [i for i in range(cuda.device_count()) if cuda.memory_reserved(i)]


def gpu_peak() -> tuple[int, int]:
    """Peak bytes allocated and reserved since the reset, on the device that has most of them."""
    peaks = [(torch.cuda.max_memory_allocated(i), torch.cuda.max_memory_reserved(i)) for i in gpu_devices()]
    return max(peaks, default=(0, 0))


class CudaStepClock(StepClock):
    """Notes the end of each step without ever making the CPU wait for the device."""

    def __init__(self) -> None:
        super().__init__()
        self._events: list[Any] = []

    def tick(self) -> None:
        super().tick()
        event = _Event(enable_timing=True)
        event.record()
        self._events.append(event)

    def lengths_ms(self) -> list[float]:
        """The length of each step; waits for the device."""
        torch.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in itertools.pairwise(self._events)]


class RecordedSteps:
    """One capture, from the first call of a model to the file."""

    def __init__(self, request: RunRequest) -> None:
        assert request.capture is not None
        self.registry = ModuleRegistry()
        self.optimizers: dict[int, Any] = {}
        self.inputs: Any = ()
        self._request = request
        self._path = Path(request.capture)
        self._ranges = ModuleRanges(self.registry)
        self._lines = LineRanges()
        self._creations = Creations()
        self._storages: dict[str, Any] = {}
        self._steps: list[int] = []
        self._window: ProfilerWindow | None = None
        self._ranges.install()

    def start(self, step: int) -> ProfilerWindow:
        self.registry.refresh()
        self._creations.close()
        self._storages["before"] = self._list()
        self._window = ProfilerWindow(_RECORDING, step, None).start()
        self._lines.start()
        self._window.begin_step()
        return self._window

    def stop(self, steps: list[int]) -> None:
        self._lines.stop()
        self._ranges.remove()
        self._steps = steps
        self._storages["after"] = self._list()

    def write(self) -> None:
        """Write the capture; the window is closed."""
        assert self._window is not None
        command = [self._request.entry, *self._request.arguments]
        result = RunResult("complete", "recorded", self._steps[-1] + 1, self._steps)
        manifest = build_manifest(Run(command, _RECORDING), result)
        modules = describe_registry(self.registry)
        memory = memory_json(**self._storages)
        write_capture(
            self._path, manifest, modules, {"trace.json": self._window.export, "memory.json": memory}
        )

    def _list(self) -> list[dict[str, Any]]:
        return list_storages(self.registry, self.optimizers.values(), self._creations.lines, self.inputs)


class TorchSteps(Steps):
    """Measured steps that know the program's optimizers, and what torch allocates in them."""

    why_no_steps = WHY_NO_STEPS

    def __init__(self, request: RunRequest, finish: Callable[[Json], object]) -> None:
        counts = StepCounts()
        super().__init__(request, finish, counts)
        self.recording = RecordedSteps(request) if request.capture else None
        self._optimizers: dict[int, Any] = {}
        self._table = CpuTable()
        self._window: ProfilerWindow | None = None
        count_inputs(counts)
        count_samples(counts)

    def begin_iterations(self, model: Any, inputs: Any) -> None:
        super().begin_iterations(model, inputs)
        if self.recording:
            self.recording.registry.add_root(model, "model")
            self.recording.inputs = inputs

    @property
    def trains(self) -> bool:
        return bool(self._optimizers)

    def optimizer_stepped(self, optimizer: Any) -> None:
        """An optimizer has stepped, which may or may not end the training step.

        With one more optimizer than was known, what went before were no whole steps.
        """
        if id(optimizer) not in self._optimizers:
            self.restart()
        self._optimizers[id(optimizer)] = optimizer
        if self.recording:
            self.recording.optimizers = self._optimizers

    def begin_memory(self, step: int) -> None:
        for device in gpu_devices():
            torch.cuda.reset_peak_memory_stats(device)
        if self.recording:
            self._window = self.recording.start(step)
        else:
            self._window = ProfilerWindow(RecordOptions(memory=True, shapes=False), step, None).start()
            self._window.begin_step()

    def end_memory_step(self, *, last: bool) -> None:
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
        peak = Peak(*gpu_peak()) if gpu_devices() else Peak(cpu_peak(window.profiler))
        if self.recording:
            self.recording.write()
        self._table.stop()
        return peak

    def clock(self) -> StepClock:
        return CudaStepClock() if gpu_devices() else StepClock()

    def power_meter(self) -> PowerMeter:
        """NVML's counters on a GPU, else RAPL's."""
        devices = gpu_devices()
        if not devices:
            return PowerMeter("RAPL", cpu_counters())
        properties = [torch.cuda.get_device_properties(device) for device in devices]
        uuids = [f"GPU-{device.uuid}" for device in properties if hasattr(device, "uuid")]
        return PowerMeter("NVML", gpu_counters(uuids) if len(uuids) == len(devices) else [])

    def facts(self) -> Json:
        return {"framework": "pytorch", "device": _device(), "exact": self._table.exact}


def _device() -> Json:
    devices = gpu_devices()
    if not devices:
        return {"type": "cpu", "name": None, "memory_bytes": main_memory()}
    properties = torch.cuda.get_device_properties(devices[0])
    return {"type": "cuda", "name": properties.name, "memory_bytes": properties.total_memory}


def watch_optimizers(steps: Any) -> Any:
    """Report the steps of all optimizers to `steps`, and the ends of training steps."""
    detector = StepDetector()

    def stepped(optimizer: Any) -> None:
        steps.optimizer_stepped(optimizer)
        if detector.advance(optimizer) and steps.detects:
            steps.ended()

    OptimizerWatch(stepped)
    return steps


def count_inputs(counts: StepCounts) -> None:
    """Count the elements of the tensors that the first model called in a step was given.

    The first step is watched by a hook of all modules, which only finds the model; later ones by a
    hook of that model alone.
    """

    def called(module: Any, args: Any, kwargs: Any) -> None:
        counts.add_inputs(sum(tensor.numel() for tensor in tensors_in((args, kwargs))))

    def first_called(module: Any, args: Any) -> None:
        hook.remove()
        module.register_forward_pre_hook(called, with_kwargs=True)

    hook = torch_module.register_module_forward_pre_hook(first_called)


def count_samples(counts: StepCounts) -> None:
    """Count the samples that data loaders hand out while gradients are enabled.

    A loader's batch counts with the number of its indices, so gradient accumulation, a batch size
    divided among devices and a short last batch all count as they are.
    """
    loader: Any = dataloader._BaseDataLoaderIter
    waiting: dict[int, deque[int]] = {}
    next_index, next_batch = loader._next_index, loader.__next__

    def index(iterator: Any) -> Any:
        indices = next_index(iterator)
        if isinstance(indices, list | tuple):  # else the data set makes the batches itself
            waiting.setdefault(id(iterator), deque()).append(len(indices))
        return indices

    def batch(iterator: Any) -> Any:
        samples = next_batch(iterator)
        own = waiting.get(id(iterator))
        sizes = (len(tensor) for tensor in tensors_in(samples) if tensor.dim() and len(tensor))
        count = own.popleft() if own else next(sizes, 0)
        if torch.is_grad_enabled():
            counts.add_samples(count)
        return samples

    loader._next_index, loader.__next__ = index, batch
