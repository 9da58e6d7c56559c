"""All that watches and records a PyTorch program: what is put into torch, and taken out again.

What is put into torch stays for different times: what describes recorded steps until the capture is
written, module calls and iterations until steps have been timed, and the watch of optimizers and
marks until no training can begin any more. `Recorder` decides when.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from stepscope.record.creations import CreationWatch, LoaderWatch
from stepscope.record.device_times import DeviceTimes
from stepscope.record.inductor_graphs import InductorGraphs
from stepscope.record.iterations import IterationWatch
from stepscope.record.memory.memory_recorder import MemoryRecorder
from stepscope.record.memory_budget import MemoryBudget
from stepscope.record.module_ranges import ModuleRanges
from stepscope.record.module_registry import ModuleRegistry, describe_registry, is_scripted
from stepscope.record.optimizers import OptimizerNames, OptimizerWatch, updated_modules
from stepscope.record.options import RecordOptions
from stepscope.record.part_timer import PartTimer
from stepscope.record.patch import ignoring, undo
from stepscope.record.profiler_window import ProfilerWindow
from stepscope.record.ranges import watch_open_ranges
from stepscope.record.recording import Recording
from stepscope.record.run_shares.run_shares import RunClock
from stepscope.record.samples.loop_samples import LoopSamples
from stepscope.record.step_detector import Kind, StepBoundary, StepDetector, marked
from stepscope.record.step_times import Detail, StepReadings, UnrecordedSteps, page_fault_ns

OnIteration = Callable[[object, Kind], None]


@dataclass(kw_only=True)
class TorchRecording(Recording):
    """Steps of a PyTorch program; `wanted` is how many were requested."""

    window: ProfilerWindow
    wanted: int
    budget: MemoryBudget

    def close_if_full(self) -> bool:
        """Whether all requested steps are recorded, or as many as memory allows, after a step."""
        if len(self.steps) < self.wanted and not self.budget.has_room():
            steps = "1 step" if len(self.steps) == 1 else f"{len(self.steps)} steps"
            self.warning = (
                f"recording stopped after {steps} of {self.wanted}, as more would take over "
                f"{self.budget.bytes / 1e9:.1f} GB of memory; --recorder-memory MB sets another limit"
            )
        return len(self.steps) == self.wanted or bool(self.warning)


class TorchHooks:
    """The hooks of one recorder."""

    def __init__(
        self,
        options: RecordOptions,
        detector: StepDetector,
        clock: RunClock | None,
        on_iteration: OnIteration,
    ) -> None:
        self.registry = ModuleRegistry()
        self.ranges = ModuleRanges(self.registry)
        self._options, self._clock, self._on_iteration = options, clock, on_iteration
        self._timer: PartTimer | None = None
        self._times: StepReadings | None = None  # of the steps that are recorded
        self._optimizers = OptimizerWatch(self.optimizer_stepped)
        self._mark = partial(on_iteration, self, Kind.MARK)
        marked.append(self._mark)
        self._creations = CreationWatch(detector.announce)
        self.attach()
        called = clock.log.model_called if clock else None
        self.iterations = IterationWatch(
            detector, self.ranges, self._loaders, self.may_train, on_iteration, called
        )

    def attach(self) -> None:
        """Put in what describes recorded steps, and ranges around module calls."""
        self.memory = MemoryRecorder(self.registry) if self._options.memory else None
        self._unwatch_ranges = watch_open_ranges()
        self._loaders = LoaderWatch()
        self._compiled = InductorGraphs(self.registry, self.ranges)
        self.ranges.install()
        self._optimizers.names = OptimizerNames()

    def detach(self) -> None:
        self.detach_from_iterations()
        self._detach_from_recording()
        self.stop_timing()
        self.detach_from_training()
        if self.memory:
            self.memory.detach()

    def _detach_from_recording(self) -> None:
        undo(self._unwatch_ranges)
        self._loaders.remove()
        self._creations.remove()
        self._compiled.remove()
        self._optimizers.names = None

    def detach_from_iterations(self) -> None:
        """Only optimizers and marks end steps from now on."""
        self.iterations.close()
        self.ranges.remove()

    def detach_from_training(self) -> None:
        """Nothing ends a step any more."""
        self._optimizers.close()
        if self._mark in marked:
            marked.remove(self._mark)

    def release(self) -> None:
        """The capture is written: the run may last for days, so keep neither models nor traces."""
        self.registry.clear()
        self._compiled.clear()
        if self.memory:
            self.memory.close()

    def optimizer_stepped(self, optimizer: Any) -> None:
        if self.memory:
            self.memory.optimizer_stepped(optimizer)
        self._on_iteration(optimizer, Kind.OPTIMIZER)

    def may_train(self) -> bool:
        """Whether an optimizer exists that has not stepped yet, as far as can be seen."""
        return self._optimizers.has_seen_one and not self._optimizers.traced_one

    @contextmanager
    def own_work(self) -> Iterator[None]:
        """What runs inside is no time of the step that runs."""
        timer = self._timer
        if timer:
            timer.pause()
        try:
            yield
        finally:
            if timer:
                timer.resume()

    def outside_of_run(self) -> AbstractContextManager[None]:
        """The time inside is no time of the run."""
        return self._clock.log.excluding() if self._clock else nullcontext()

    # -- recorded steps

    def open(
        self,
        first: int,
        wanted: int,
        boundary: StepBoundary | None,
        *,
        early: bool,
        on_other_profiler: Callable[[], None],
    ) -> TorchRecording:
        """What steps are recorded in; `start` and `begin_step` follow."""
        self.registry.refresh()
        self.ranges.install()
        if self.memory:
            self.memory.start()
        budget = MemoryBudget(self._options.recorder_memory, early)
        has_scripted = any(is_scripted(node.module) for node in self.registry.nodes())
        window = ProfilerWindow(self._options, first, boundary, on_other_profiler, has_scripted)
        return TorchRecording(window=window, wanted=wanted, early=early, budget=budget)

    def start(self, recording: TorchRecording) -> None:
        recording.window.start()
        self.stop_timing()
        if self._clock:
            self._clock.mark_activities(True)
        recording.samples = LoopSamples()

    def begin_step(self, recording: TorchRecording) -> None:
        if self._times is None:
            self._times = StepReadings(self._start_timing().read)
        self._times.begin()
        recording.window.begin_step()

    def end_step(self, recording: TorchRecording, boundary: StepBoundary | None) -> None:
        if self._times:
            self._times.end()
        recording.window.end_step()
        recording.window.boundary = boundary

    def close(self, recording: TorchRecording) -> None:
        """Where the program's signal handler raises meanwhile, this is called again."""
        if not self.iterations.is_open:
            self.ranges.remove()
        if self._clock:
            self._clock.mark_activities(False)
        if self._timer and self._times and (times := self._times.describe()):
            own = {"page_fault_ns": page_fault_ns(), "changes": self._timer.changes()}
            recording.times = times | own | {"each": self._times.describe_each()}
        recording.stop_samples()
        kept = self.memory.stop() if self.memory else []
        recording.window.close()
        if self.memory:
            recording.members |= self.memory.members(kept, recording.window.profiler)
        self._describe(recording)

    def _describe(self, recording: TorchRecording) -> None:
        recording.modules = describe_registry(self.registry)
        if names := self._optimizers.names:
            with ignoring(Exception):  # optimizers of others may hold anything
                recording.updated = updated_modules(names.by_optimizer(), self.registry)
        if compiled := self._compiled.describe():
            recording.members["compiled.json"] = compiled
        recording.loaders = self._loaders.describe()
        recording.created = self._creations.describe()

    # -- unrecorded steps

    def time_unrecorded(self) -> UnrecordedSteps:
        """The last step to be recorded has ended: from now on steps are only timed."""
        self._times = None
        timer = self._timer or self._start_timing()
        timer.stop_noting_changes()
        time_in = None if self.iterations.is_open else self._time_in
        steps = UnrecordedSteps(timer, time_in, DeviceTimes.of_torch())
        self._detach_from_recording()
        self.ranges.install(quiet=True)  # model calls are timed, and may end the steps
        return steps

    def _time_in(self, detail: Detail) -> None:
        if self._timer:
            self._timer.tell_parts(detail >= Detail.PARTS)
        if detail is Detail.CALLS:
            self.ranges.install(quiet=True)
        else:
            self.ranges.remove()

    def _start_timing(self) -> PartTimer:
        with self.iterations.around_others():  # steps end outside of the parts that are timed
            self._timer = self.ranges.timer = self._optimizers.timer = PartTimer()
        return self._timer

    def stop_timing(self) -> None:
        timer, self._timer, self._times = self._timer, None, None
        self.ranges.timer = self._optimizers.timer = None
        if timer:
            with self.iterations.around_others():
                timer.remove()
