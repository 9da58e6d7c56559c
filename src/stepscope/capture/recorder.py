"""Decides at the end of each step what to watch and record during the next.

    step      0          1 2 3           4        5 6 7          8       9 … 28   29 …
              observed   early window    nothing  main window    writes  timed    no hooks left

The first step is observed to find the model trees. The early window is kept only until the main
window has a complete step: it serves scripts that end before the warm-up is over.

A script may mark its steps itself (`step_marks`).
Optimizers end the steps of others. Until an optimizer steps, steps are iterations of their loop
(`iterations`). They are discarded when training begins, or when they turn out to be part of a
larger loop. While either is possible, there is no early window, and the main one is not final.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from stepscope.capture.clock_readings import page_fault_ns
from stepscope.capture.creations import CreationWatch, LoaderWatch
from stepscope.capture.inductor_graphs import InductorGraphs
from stepscope.capture.iterations import IterationWatch
from stepscope.capture.memory.memory_recorder import MemoryRecorder
from stepscope.capture.module_ranges import ModuleRanges
from stepscope.capture.module_registry import ModuleRegistry, describe_registry
from stepscope.capture.optimizer_names import OptimizerNames, OptimizerOrder, updated_modules
from stepscope.capture.optimizers import OptimizerWatch
from stepscope.capture.options import RecordOptions
from stepscope.capture.part_timer import PartTimer
from stepscope.capture.profiler_window import OpenRanges, ProfilerWindow
from stepscope.capture.recording import Recording, detach_in_forked_children
from stepscope.capture.samples.loop_samples import LoopSamples
from stepscope.capture.step_detector import Kind, StepDetector, StepMarks, TrainingThread
from stepscope.capture.timed_steps import FEWEST, TimedSteps
from stepscope.capture.unrecorded_steps import Detail, UnrecordedSteps
from stepscope.errors import CaptureError

if TYPE_CHECKING:
    from stepscope.capture.run_shares.run_clock import RunClock


@dataclass(kw_only=True)
class TorchRecording(Recording[ProfilerWindow]):
    """Steps of a PyTorch program; `wanted` is how many were requested."""

    wanted: int


class Recorder:
    """Watches the optimizers and model calls of this process and records a few steps.

    Args:
        options: what to record.
        on_complete: called between two steps, when all requested steps are recorded.
        on_resume: called when the program begins to train after that.
        on_unrecorded: called with the times of steps after the recording (`TimedSteps`).
        only_training: whether only optimizers end steps.
        clock: measures the whole run, without the time of the recorder.
    """

    framework = "pytorch"

    def __init__(
        self,
        options: RecordOptions,
        on_complete: Callable[[TorchRecording], None],
        on_resume: Callable[[], None] = lambda: None,
        on_unrecorded: Callable[[dict[str, Any]], None] = lambda facts: None,
        only_training: bool = False,
        clock: RunClock | None = None,
    ) -> None:
        self.detector = StepDetector(options.step_every)
        self.registry = ModuleRegistry()
        self.failure: str | None = None
        self.is_over = False
        self._options = options
        self._on_complete, self._on_resume = on_complete, on_resume
        self._on_unrecorded = on_unrecorded
        self._clock = clock
        self._timer: PartTimer | None = None
        self._timed: TimedSteps | None = None
        self._unrecorded: UnrecordedSteps | None = None
        self._running: TorchRecording | None = None
        self._early: TorchRecording | None = None
        self._main: TorchRecording | None = None
        self._ranges = ModuleRanges(self.registry)
        self._thread = TrainingThread()
        self.memory: MemoryRecorder | None = None
        self._watch = OptimizerWatch(self._stepped)
        self._order = OptimizerOrder()
        self._has_begun_again = False
        self._awaits_training = options.from_optimizer > 1
        self._marks = StepMarks(self._marked)
        self._creations = CreationWatch()
        self._attach()
        self._iterations = IterationWatch(
            self.detector, self._ranges, self._loader_watch, self._may_train,
            self._iteration_ended, clock.log.model_called if clock else None,
        )  # fmt: skip
        if only_training or self._awaits_training:
            self._iterations.close()
        if self._awaits_training:
            self._ranges.remove()
        detach_in_forked_children(self)

    def start(self) -> None:
        """Begin to record now, where no warm-up is requested."""
        if self._options.warmup == 0:
            self._main = self._open(first=0, wanted=self._options.steps, early=False)

    def has_stepped(self, optimizer: Any) -> None:
        """A step that ended before this recorder began to watch."""
        self._stepped(optimizer)

    def close(self) -> None:
        """Stop all recording and leave torch as it was."""
        try:
            self._close_window()
            self._report_unrecorded()
        except Exception as error:
            self._note(error)
        finally:
            self.detach()
        if best := self.best():
            self.detector.boundary = best.window.boundary

    def detach(self) -> None:
        """Remove every hook."""
        self._detach_from_loop()
        self._stop_timing()
        self._watch.close()
        self._marks.close()
        if self.memory:
            self.memory.detach()

    def end_step_now(self) -> TorchRecording | None:
        """The step that runs counts as complete, as an error ends it; the recording to keep."""
        if self._running:
            self._running.window.end_step()
        self._close_window()
        return self.best()

    def best(self) -> TorchRecording | None:
        """The recording to keep: the main one if it has a complete step, else the early one."""
        kept = (recording for recording in (self._main, self._early) if recording)
        return next((recording for recording in kept if recording.steps), None)

    @property
    def problem(self) -> str | None:
        """What went wrong in the recorder, if anything did."""
        return self.failure or self._ranges.failure

    @property
    def why_no_steps(self) -> str:
        """Why nothing was recorded, in words."""
        if self._awaits_training and self._order.last:
            stepped = "1 optimizer" if self._order.last == 1 else f"{self._order.last} optimizers"
            wanted = self._options.from_optimizer
            return f"{stepped} stepped in this process, too few for --from-optimizer {wanted}"
        return "no optimizer stepped in this process, and no loop around a model repeated"

    def _attach(self) -> None:
        self.memory = MemoryRecorder(self.registry) if self._options.memory else None
        self._open_ranges = OpenRanges()
        self._loader_watch = LoaderWatch()
        self._compiled = InductorGraphs(self.registry, self._ranges)
        self._ranges.install()
        self._watch.names = OptimizerNames()

    def _detach_from_loop(self) -> None:
        """Remove every hook but those of the optimizers."""
        self._detach_from_iterations()
        self._detach_from_recording()

    def _detach_from_iterations(self) -> None:
        self._iterations.close()
        self._ranges.remove()

    def _detach_from_recording(self) -> None:
        self._open_ranges.close()
        self._loader_watch.remove()
        self._creations.remove()
        self._compiled.remove()
        self._watch.names = None

    def _may_train(self) -> bool:
        return self._watch.has_seen_one and not self._watch.traced_one

    def _stepped(self, optimizer: Any) -> None:
        if self.memory:
            self.memory.optimizer_stepped(optimizer)
        self._iteration_ended(optimizer, Kind.OPTIMIZER)

    def _marked(self, marks: StepMarks) -> None:
        self._iteration_ended(marks, Kind.MARK)

    def _iteration_ended(self, thing: object, kind: Kind) -> None:
        """The program must continue whatever happens in the recorder."""
        if self._unrecorded and (kind < Kind.OPTIMIZER or not self._iterations.is_open):
            self._unrecorded_iteration_ended(self._unrecorded, thing)
            return
        with (
            self._own_work(),
            self._thread.turn(kind, is_recording=self._running is not None) as counts,
        ):
            if not counts:
                return
            with self._clock.excluding() if self._clock else nullcontext(), _unseen():
                try:
                    self._advance(thing, kind)
                except Exception as error:
                    self._note(error)
                    self.close()

    def _unrecorded_iteration_ended(self, steps: UnrecordedSteps, thing: object) -> None:
        """Nothing is looked for: what works in these steps makes them longer."""
        try:
            if self._thread.is_current() and self.detector.repeats_boundary(thing):
                steps.step_ended()
                if steps.is_complete:
                    self._end_timing()
        except Exception as error:
            self._note(error)
            self.close()

    @contextmanager
    def _own_work(self) -> Iterator[None]:
        """What runs inside is no time of the step that runs."""
        timer = self._timer
        if timer:
            timer.pause()
        try:
            yield
        finally:
            if timer:
                timer.resume()

    def _note(self, error: Exception) -> None:
        self.failure = self.failure or f"{type(error).__name__}: {error}"

    def _advance(self, thing: object, kind: Kind) -> None:
        if self._awaits_training and not self._begins_training(thing, kind):
            return
        ends_step = self.detector.advance(thing, kind)
        if self._unrecorded:
            self._end_timing()  # another loop was timed
        if self.is_over:
            self._resume()
            return
        if kind >= Kind.OPTIMIZER and self._iterations.is_open:
            self._begin_training()
        recording = self._running or self._main
        if recording and recording.window.boundary not in (None, self.detector.boundary):
            self._discard()
        elif self._running and self.detector.is_taken_over and not self._has_begun_again:
            self._begin_again()
        if ends_step:
            self._end_step(self.detector.steps)

    def _begins_training(self, thing: object, kind: Kind) -> bool:
        """Whether the first optimizer steps that is to be recorded."""
        if kind is not Kind.OPTIMIZER:
            return False
        if self._order.number(thing) < self._options.from_optimizer:
            return False
        self._awaits_training = False
        self._ranges.install()
        return True

    def _end_step(self, done: int) -> None:
        warmup = self._options.warmup
        if self._running:
            self._end_recorded_step(self._running)
        if self._main and not self._running:
            if self._is_sure():
                self._complete(self._main)
        elif self._running or self._open_ranges.are_left:
            return
        elif done >= warmup:
            self._main = self._open(done, self._options.steps, early=False)
        elif self._early is None and self._is_sure():
            self._early = self._open(done, min(self._options.steps, warmup - done), early=True)

    def _end_recorded_step(self, recording: TorchRecording) -> None:
        if self._timed:
            self._timed.end()
        recording.window.end_step()
        recording.window.boundary = self.detector.boundary
        if len(recording.steps) == recording.wanted:
            self._close_window()
        else:
            self._begin_recorded_step(recording)

    def _begin_recorded_step(self, recording: TorchRecording) -> None:
        timed = self._timed or self._start_timing()
        timed.begin()
        recording.window.begin_step()

    def _is_sure(self) -> bool:
        """Whether the current boundary is final."""
        return self.detector.is_sure and not (self._iterations.is_open and self._may_train())

    def _complete(self, recording: TorchRecording) -> None:
        self.is_over = True
        if self._timer is None:
            self._start_timing()
        if self._timer:
            self._unrecorded = self._time_steps_without_recording(self._timer)
        self._timed = None
        self._detach_from_recording()
        self._ranges.only_report()  # model calls are timed, and may end the steps
        self._on_complete(recording)
        self._release()

    def _time_steps_without_recording(self, timer: PartTimer) -> UnrecordedSteps:
        timer.stop_noting_changes()
        return UnrecordedSteps(timer, None if self._iterations.is_open else self._time_in)

    def _time_in(self, detail: Detail) -> None:
        if self._timer:
            self._timer.tell_parts(detail >= Detail.PARTS)
        if detail is Detail.CALLS:
            self._ranges.only_report()
        else:
            self._ranges.remove()

    def _end_timing(self) -> None:
        """Keep the watch of optimizers where none has stepped: training may begin yet."""
        trained = not self._iterations.is_open
        self._detach_from_iterations()
        self._stop_timing()
        if trained:
            self._watch.close()
            self._marks.close()
        self._report_unrecorded()

    def _report_unrecorded(self) -> None:
        steps, self._unrecorded = self._unrecorded, None
        facts = steps.describe() if steps else None
        if facts and facts["count"] >= FEWEST:
            self._on_unrecorded(facts)

    def _start_timing(self) -> TimedSteps:
        """Time the steps that are recorded now, to compare them with unrecorded ones."""
        with self._iterations.around_others():  # steps end outside of the parts that are timed
            self._timer = self._ranges.timer = self._watch.timer = PartTimer()
        self._timed = TimedSteps(self._timer)
        return self._timed

    def _stop_timing(self) -> None:
        timer, self._timer, self._timed = self._timer, None, None
        self._ranges.timer = self._watch.timer = None
        if timer:
            with self._iterations.around_others():
                timer.close()

    def _open(self, first: int, wanted: int, *, early: bool) -> TorchRecording:
        self.registry.refresh()
        self._ranges.install()
        if self.memory:
            self.memory.start()
        window = ProfilerWindow(
            self._options, first, self.detector.boundary, self._other_profiler_starts,
            self.registry.has_scripted,
        )  # fmt: skip
        self._open_ranges.profiler_starts()
        self._stop_timing()
        if self._clock:
            self._clock.mark_activities(True)
        self._running = TorchRecording(window=window, wanted=wanted, early=early)
        self._running.samples = LoopSamples()
        self._thread.at_its_end(self._close_window)
        self._begin_recorded_step(self._running)
        return self._running

    def _close_window(self) -> None:
        recording, self._running = self._running, None
        if recording and not self._thread.is_current():
            self._abandon(recording)
        elif recording:
            if not self._iterations.is_open:
                self._ranges.remove()
            if self._clock:
                self._clock.mark_activities(False)
            self._open_ranges.profiler_stopped()
            if self._timed and self._timer and (times := self._timed.describe()):
                own = {"page_fault_ns": page_fault_ns(), "changes": self._timer.changes()}
                recording.times = times | own
            recording.stop_samples()
            kept = self.memory.stop() if self.memory else []
            recording.window.close()
            if self.memory:
                recording.members |= self.memory.members(kept, recording.window.profiler)
            recording.modules = describe_registry(self.registry)
            if names := self._watch.names:
                with suppress(Exception):  # optimizers of others may hold anything
                    recording.updated = updated_modules(names.by_optimizer(), self.registry)
            if compiled := self._compiled.describe():
                recording.members["compiled.json"] = compiled
            recording.loaders = self._loader_watch.describe()
            recording.created = self._creations.describe()

    def _other_profiler_starts(self) -> None:
        """torch has one profiler at a time: the script's own comes first; complete steps stay."""
        self._close_window()
        if self._main and not self._main.steps:
            self._main = None  # another may be opened once that profiler has stopped

    def _abandon(self, recording: TorchRecording) -> None:
        """Only the thread of a profiler can stop it, and that thread still runs at the end."""
        recording.stop_samples()
        recording.window.abandon()
        self._note(CaptureError("the thread that trains still ran as the program ended"))

    def _release(self) -> None:
        """The run may last for days: keep neither its models nor the recordings alive."""
        self._early = self._main = None
        self.registry.clear()
        self._compiled.clear()
        if self.memory:
            self.memory.close()

    def _discard(self) -> None:
        """The step boundary has changed, so what was recorded were not steps.

        Iterations of a smaller loop are kept: they are better than nothing.
        """
        self._close_window()
        self._stop_timing()
        self._early = self.best() if self._iterations.is_open else None
        self._main = None
        self._ranges.install()

    def _begin_again(self) -> None:
        """Another optimizer goes on, with what the program did before that in its first step.

        Once only: a program may create one for every few steps. What is recorded is kept until
        there is more.
        """
        self._has_begun_again = True
        self._close_window()
        self._stop_timing()
        self._early, self._main = self.best(), None
        self._ranges.install()

    def _begin_training(self) -> None:
        """An optimizer steps: from now on only optimizers end steps, and iterations never did."""
        self._iterations.close()
        if self._running and self._running.window.boundary is None:
            return  # its first step has not ended yet, and this one ends it
        self._close_window()
        self._stop_timing()
        self._early = self._main = None
        self._ranges.install()

    def _resume(self) -> None:
        """Training begins after another loop was recorded: the next step is observed."""
        self.is_over = False
        self._attach()
        self._on_resume()


def _unseen() -> ExitStack:
    """What the recorder does with tensors is no event for modes and subclasses of the script."""
    stack = ExitStack()
    for name in ("DisableTorchFunction", "_DisableTorchDispatch"):
        if guard := getattr(torch._C, name, None):
            stack.enter_context(guard())
    return stack
