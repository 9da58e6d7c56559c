"""Decides at the end of each step what to watch and record during the next.

    step      0          1 2 3           4        5 6 7          8       9 … 28   29 …
              observed   early window    nothing  main window    writes  timed    no hooks left

The first step is observed to find the model trees. The early window is kept only until the main
window has a complete step: it serves scripts that end before the warm-up is over.

A script may mark its steps itself (`stepscope.step`).
Optimizers end the steps of others. Until an optimizer steps, steps are iterations of their loop
(`iterations`). They are discarded when training begins, or when they turn out to be part of a
larger loop. While either is possible, there is no early window, and the main one is not final.

    state      event                                                  next state
    WAITING    the first optimizer to be recorded steps               OBSERVING
    OBSERVING  a step ends after the warm-up                          RECORDING (main window)
               a step ends before, for sure, the first time           RECORDING (early window)
    RECORDING  the last wanted step of the main window ends           HELD
               the last wanted step of the early window ends          OBSERVING
               the script starts a profiler, or the thread ends       HELD or OBSERVING
    HELD       a step ends, and what ends steps is final              TIMING (capture is written)
    RECORDING, HELD  something else ends steps, training begins       OBSERVING
    TIMING     enough steps are timed, or training begins             DONE
    DONE       training begins after another loop was recorded        OBSERVING
    any        the run ends, or the recorder fails                    CLOSED
"""

import threading
from collections.abc import Callable
from enum import Enum, auto
from typing import Any

import torch

from stepscope.errors import CaptureError
from stepscope.record.memory.memory_recorder import MemoryRecorder
from stepscope.record.optimizers import OptimizerOrder
from stepscope.record.options import RecordOptions
from stepscope.record.patch import ignoring
from stepscope.record.recording import call_in_forked_children
from stepscope.record.run_shares.run_shares import RunClock
from stepscope.record.step_detector import Kind, StepDetector, TrainingThread
from stepscope.record.step_times import FEWEST, UnrecordedSteps
from stepscope.record.torch_hooks import TorchHooks, TorchRecording


class State(Enum):
    """What the recorder does during a step."""

    WAITING = auto()
    OBSERVING = auto()
    RECORDING = auto()
    HELD = auto()
    TIMING = auto()
    DONE = auto()
    CLOSED = auto()


class Recorder:
    """Watches the optimizers and model calls of this process and records a few steps."""

    framework = "pytorch"

    def __init__(
        self,
        options: RecordOptions,  # what to record
        # Called between two steps, when all requested steps are recorded.
        on_complete: Callable[[TorchRecording], None],
        on_resume: Callable[[], None] = lambda: None,  # called when the program begins to train after that
        # Called with the times of steps after the recording (`StepReadings`).
        on_unrecorded: Callable[[dict[str, Any]], None] = lambda facts: None,
        only_training: bool = False,  # whether only optimizers end steps
        clock: RunClock | None = None,  # measures the whole run, without the time of the recorder
    ) -> None:
        self.detector = StepDetector(options.step_every)
        self.failure: str | None = None
        self._options = options
        self._on_complete, self._on_resume = on_complete, on_resume
        self._on_unrecorded = on_unrecorded
        self._state = State.WAITING if options.from_optimizer > 1 else State.OBSERVING
        self._early: TorchRecording | None = None
        self._main: TorchRecording | None = None
        self._running: TorchRecording | None = None  # one of both, while RECORDING
        self._unrecorded: UnrecordedSteps | None = None  # while TIMING
        self._has_begun_again = self._was_interrupted = False
        self._order = OptimizerOrder()
        self._thread = TrainingThread()
        self._hooks = TorchHooks(options, self.detector, clock, self._iteration_ended)
        self.registry = self._hooks.registry
        if only_training or self._state is State.WAITING:
            self._hooks.iterations.close()
        if self._state is State.WAITING:
            self._hooks.ranges.remove()
        call_in_forked_children(self.detach)

    @property
    def memory(self) -> MemoryRecorder | None:
        return self._hooks.memory

    def start(self) -> None:
        """Begin to record now, where no warm-up is requested."""
        if self._options.warmup == 0:
            self._open_main(first=0)

    def has_stepped(self, optimizer: Any) -> None:
        """A step that ended before this recorder began to watch."""
        self._hooks.optimizer_stepped(optimizer)

    def close(self) -> None:
        """Stop all recording and leave torch as it was."""
        try:
            with ignoring(Exception, then=self._note):
                self._close_window()
                self._report_unrecorded()
        finally:
            self.detach()
        if best := self.best():
            self.detector.boundary = best.window.boundary

    @property
    def is_closed(self) -> bool:
        return self._state is State.CLOSED

    def detach(self) -> None:
        self._state = State.CLOSED
        self._hooks.detach()

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
        return self.failure or self._hooks.ranges.failure

    @property
    def why_no_steps(self) -> str:
        first, stepped = self._options.from_optimizer, self._order.last
        if 0 < stepped < first:
            optimizers = "1 optimizer" if stepped == 1 else f"{stepped} optimizers"
            return f"{optimizers} stepped in this process, too few for --from-optimizer {first}"
        return "no optimizer stepped in this process, and no loop around a model repeated"

    # -- events

    def _iteration_ended(self, thing: object, kind: Kind) -> None:
        if self._unrecorded and (kind < Kind.OPTIMIZER or self._trains):
            self._try(self._time_iteration, self._unrecorded, thing)
            return
        is_recording = self._state is State.RECORDING
        with self._hooks.own_work(), self._thread.turn(kind, is_recording=is_recording) as counts:
            if counts:
                # What the recorder does with tensors must not reach modes and subclasses of the script.
                with (
                    self._hooks.outside_of_run(),
                    torch._C.DisableTorchFunction(),
                    torch._C._DisableTorchDispatch(),
                ):
                    self._try(self._advance, thing, kind)

    def _try(self, action: Callable[..., None], *arguments: Any) -> None:
        """The program must continue whatever happens in the recorder."""
        try:
            with ignoring(Exception, then=self._note):
                action(*arguments)
                return
        except BaseException:  # of a signal handler of the program, which may come in each step
            self.close() if self._was_interrupted else self._end_early()
            self._was_interrupted = True
            raise
        self.close()

    def _note(self, error: Exception) -> None:
        self.failure = self.failure or f"{type(error).__name__}: {error}"

    def _time_iteration(self, steps: UnrecordedSteps, thing: object) -> None:
        """Nothing is looked for: what works in these steps makes them longer."""
        if self._thread.is_current() and self.detector.repeats_boundary(thing):
            steps.step_ended()
            if steps.is_complete:
                self._end_timing()

    @property
    def _trains(self) -> bool:
        """Whether only optimizers and marks end steps."""
        return not self._hooks.iterations.is_open

    def _advance(self, thing: object, kind: Kind) -> None:
        if self._state is State.WAITING and not self._begins_training(thing, kind):
            return
        ends_step = self.detector.advance(thing, kind)
        if self._state is State.TIMING:
            self._end_timing()  # another loop was timed
        if self._state is State.DONE:
            self._resume()
        elif self._state is not State.CLOSED:
            self._follow_boundary(kind)
            if ends_step:
                self._end_step(self.detector.steps)

    def _begins_training(self, thing: object, kind: Kind) -> bool:
        """Whether the first optimizer steps that is to be recorded."""
        if kind is not Kind.OPTIMIZER or self._order.number(thing) < self._options.from_optimizer:
            return False
        self._observe()
        return True

    def _follow_boundary(self, kind: Kind) -> None:
        """Discard what is recorded where something else ends steps."""
        if kind >= Kind.OPTIMIZER and not self._trains:
            self._begin_training()
        recording = self._running or self._main
        if recording and recording.window.boundary not in (None, self.detector.boundary):
            # Iterations of a smaller loop are kept: they are better than nothing.
            self._observe_again(keeps=not self._trains)
        elif self._running and self.detector.is_taken_over and not self._has_begun_again:
            # Another optimizer goes on, with what the program did before that in its first step.
            # Once only: a program may create one for every few steps.
            self._has_begun_again = True
            self._observe_again(keeps=True)

    def _end_step(self, done: int) -> None:
        warmup = self._options.warmup
        if self._running:
            self._end_recorded_step(self._running)
        if self._state is State.HELD:
            if self._main and self._is_sure() and not self.detector.awaits_optimizer:
                self._complete(self._main)
        elif self._state is not State.OBSERVING:
            return
        elif done >= warmup:
            self._open_main(done)
        elif self._early is None and self._is_sure():
            self._early = self._open(done, min(self._options.steps, warmup - done), early=True)

    def _is_sure(self) -> bool:
        """Whether the current boundary is final."""
        return self.detector.is_sure and (self._trains or not self._hooks.may_train())

    # -- transitions

    def _observe(self) -> None:
        self._state = State.OBSERVING
        self._hooks.ranges.install()

    def _open_main(self, first: int) -> None:
        self._main = self._open(first, self._options.steps, early=False)

    def _open(self, first: int, wanted: int, *, early: bool) -> TorchRecording:
        self._running = self._hooks.open(
            first, wanted, self.detector.boundary, early=early, on_other_profiler=self._end_early
        )
        self._state = State.RECORDING
        self._thread.at_its_end(self._close_window)
        self._hooks.start(self._running)
        self._hooks.begin_step(self._running)
        return self._running

    def _end_recorded_step(self, recording: TorchRecording) -> None:
        self._hooks.end_step(recording, self.detector.boundary)
        if recording is self._main and threading.current_thread() is threading.main_thread():
            self._early = None  # its events take memory, and the main window can no longer be lost
        if recording.close_if_full():
            self._close_window()
        else:
            self._hooks.begin_step(recording)

    def _close_window(self) -> None:
        if (recording := self._running) is None:
            return
        self._state = State.HELD if self._main else State.OBSERVING
        if self._thread.is_current():
            self._hooks.close(recording)
        else:
            self._abandon(recording)
        self._running = None  # not before: a signal handler of the program may raise meanwhile

    def _abandon(self, recording: TorchRecording) -> None:
        """Only the thread of a profiler can stop it, and that thread still runs at the end."""
        recording.stop_samples()
        recording.window.abandon()
        self._note(CaptureError("the training thread was still running when the program ended"))

    def _end_early(self) -> None:
        """torch has one profiler at a time: the script's own comes first; complete steps stay."""
        self._close_window()
        if self._state is State.HELD and self._main and not self._main.steps:
            self._main = None  # another may be opened once that profiler has stopped
            self._state = State.OBSERVING

    def _observe_again(self, *, keeps: bool) -> None:
        """What was recorded were not the steps to record; kept until there is something better."""
        self._close_window()
        self._hooks.stop_timing()
        self._early = self.best() if keeps else None
        self._main = None
        self._observe()

    def _begin_training(self) -> None:
        """An optimizer steps: from now on only optimizers end steps, and iterations never did."""
        self._hooks.iterations.close()
        if self._running is None or self._running.window.boundary is not None:
            self._observe_again(keeps=False)
        # else the first recorded step has not ended yet, and this one ends it

    def _complete(self, recording: TorchRecording) -> None:
        self._state = State.TIMING
        self._unrecorded = self._hooks.time_unrecorded()
        self._on_complete(recording)
        self._early = self._main = None
        self._hooks.release()

    def _end_timing(self) -> None:
        """Keep the watch of optimizers where none has stepped: training may begin yet."""
        self._state = State.DONE
        trained = self._trains
        self._hooks.detach_from_iterations()
        self._hooks.stop_timing()
        if trained:
            self._hooks.detach_from_training()
        self._report_unrecorded()

    def _report_unrecorded(self) -> None:
        steps, self._unrecorded = self._unrecorded, None
        facts = steps.describe() if steps else None
        if facts and facts["count"] >= FEWEST:
            self._on_unrecorded(facts)

    def _resume(self) -> None:
        """Training begins after another loop was recorded: the next step is observed."""
        self._state = State.OBSERVING
        self._hooks.attach()
        self._on_resume()
