"""Decides, at each return of the training function, what to record of a JAX program.

    step      0 (compiles)  1 2          3 4      5 6 7        8        9 … 28  29 …
                            not watched  runs in  main window  ends it  timed   nothing, no hook

After each compilation the warm-up starts again. The first two steps of a window are not kept: their
work was requested before the recording began, or before the loop was kept from running ahead. Of a
program that ends before the main window, the second and third step of the window are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stepscope.capture.clock_readings import WholeSteps
from stepscope.capture.jax import MEMBER, OTHER_PROFILER
from stepscope.capture.jax.compilation_counter import CompilationCounter
from stepscope.capture.jax.jax_step_detector import UNSURE_STEPS, JaxStepDetector
from stepscope.capture.jax.jax_window import RUN_IN, JaxWindow, catch_up, require_session
from stepscope.capture.jax.jit_calls import JitCall, JitCallWatch
from stepscope.capture.jax.steady_steps import SteadySteps
from stepscope.capture.options import RecordOptions
from stepscope.capture.recording import Recording, detach_in_forked_children
from stepscope.capture.samples.loop_samples import LoopSamples
from stepscope.capture.timed_steps import FEWEST, TimedSteps
from stepscope.errors import CaptureError

_LEAD = 1  # steps by which the window opens early, for programs that end soon
_PATIENCE = 100  # steps after which a program that never stops compiling is recorded anyway


@dataclass(kw_only=True)
class JaxRecording(Recording[JaxWindow]):
    """Steps of a JAX program; `compiled` is the number of compilations before it began."""

    compiled: int
    member: str = MEMBER

    def stop_samples(self) -> None:
        """End sampling; the closest mark relates the samples to the profile."""
        super().stop_samples()
        samples = self.members.get("samples.json")
        if isinstance(samples, dict) and self.window.closest_mark:
            samples["mark"] = self.window.closest_mark._asdict()

    def keep_early_steps(self) -> None:
        """Where the program ended before the main window, the steps before it count."""
        if not self.window.complete and self.window.early:
            self.window.complete, self.early = self.window.early, True


class JaxRecorder:
    """Watches the compiled functions of this process and records a few training steps.

    Args:
        options: what to record.
        on_complete: called between two steps, when all requested steps are recorded.
        on_unrecorded: called with the times of steps after the recording (`TimedSteps`).

    Raises:
        CaptureError: this version of JAX lacks what the recorder hooks into.
    """

    framework = "jax"

    def __init__(
        self,
        options: RecordOptions,
        on_complete: Callable[[JaxRecording], None],
        on_unrecorded: Callable[[dict[str, Any]], None],
    ) -> None:
        require_session()
        self.detector = JaxStepDetector(options.step_every)
        self.problem: str | None = None
        self._options = options
        self._on_complete, self._on_unrecorded = on_complete, on_unrecorded
        self._timed: TimedSteps | None = None
        self._unrecorded: SteadySteps | None = None
        self._boundary: object = None  # of the steps that were recorded
        self._running: JaxRecording | None = None
        self._main: JaxRecording | None = None
        self._warm = 0
        self._compiled: int | None = None
        self._compilations = CompilationCounter()
        self._watch: JitCallWatch | None = JitCallWatch(self._returned)
        detach_in_forked_children(self)

    def start(self) -> None:
        """Begin to record now, where no warm-up is requested."""
        if self._options.warmup == 0:
            self._main = self._open(0, run_in=0)

    def close(self) -> None:
        """Stop all recording and watch no more calls; only compilations are still counted."""
        try:
            self._close_window(drain=False)
            self._report_unrecorded()
        except Exception as error:
            self._note(error)
        finally:
            self._unwatch()

    def detach(self) -> None:
        """Remove every hook, and leave JAX as it was."""
        self._unwatch()
        self._compilations.close()

    def _unwatch(self) -> None:
        watch, self._watch = self._watch, None
        if watch:
            watch.close()

    @property
    def why_no_steps(self) -> str:
        """Why no step was seen."""
        nothing = "no function under jax.jit was called repeatedly in this process"
        return "each call compiled again" if self.compiles_again else nothing

    @property
    def compiles_again(self) -> str | None:
        """What is compiled again and again, where that takes much of the run."""
        return self._compilations.often

    def best(self) -> JaxRecording | None:
        """The recording, if it has a complete step; one before the warm-up is over at the end."""
        return self._main if self._main and self._main.steps else None

    def _returned(self, call: JitCall) -> None:
        """Training must continue whatever happens in the recorder."""
        try:
            if self.detector.advance(call.name, call.inputs, call.outputs):
                self._end_step(self.detector.steps, call.outputs)
        except Exception as error:
            self._note(error)
            self.close()

    def _note(self, error: Exception) -> None:
        named = "" if isinstance(error, CaptureError) else f"{type(error).__name__}: "
        self.problem = self.problem or f"{named}{error}"

    def _end_step(self, done: int, outputs: Any) -> None:
        self._count_warm_steps()
        if self._unrecorded:
            self._time_unrecorded(self._unrecorded, outputs)
            return
        if self._running:
            self._end_recorded_step(self._running, outputs)
        if self._main and not self._running:
            self._complete(self._main)
        elif not self._main and (left := self._warm_steps_left(done)) <= _LEAD:
            catch_up(outputs)
            self._main = self._open(done + RUN_IN + left, RUN_IN + left)

    def _complete(self, recording: JaxRecording) -> None:
        self._on_complete(recording)
        self._main, self._unrecorded = None, SteadySteps()
        self._boundary = self.detector.boundary

    def _time_unrecorded(self, steps: SteadySteps, outputs: Any) -> None:
        if self._warm == 0:
            steps.interrupt()  # it compiled something
        steps.step_ended(outputs)
        if steps.is_over or self.detector.boundary is not self._boundary:
            self.close()

    def _report_unrecorded(self) -> None:
        steps, self._unrecorded = self._unrecorded, None
        facts = steps.timed.describe() if steps else None
        if facts and facts["count"] >= FEWEST:
            self._on_unrecorded(facts)

    def _count_warm_steps(self) -> None:
        compiled = self._compilations.count
        has_new = self._compiled not in (None, compiled)
        self._warm = 0 if has_new else self._warm + 1
        self._compiled = compiled

    def _warm_steps_left(self, done: int) -> int:
        """Steps until the window must open; the run-in is part of the warm-up."""
        wanted = self._options.warmup - RUN_IN + (0 if self.detector.is_sure else UNSURE_STEPS)
        return max(min(wanted - self._warm, wanted + _PATIENCE - done), 0)

    def _end_recorded_step(self, recording: JaxRecording, outputs: Any) -> None:
        window = recording.window
        if window.was_preempted:
            raise CaptureError(OTHER_PROFILER)
        if window.boundary not in (None, self.detector.boundary) or self._compiled_during(
            recording
        ):
            self._discard()
            return
        if len(recording.steps) == self._options.steps:
            # The call that ended the last step has returned: its start is recorded.
            self._close_window(drain=True)
        else:
            window.end_step(outputs)
            if self._timed and window.is_past_run_in:
                self._timed.follow()

    def _compiled_during(self, recording: JaxRecording) -> bool:
        """Whether a compilation interrupted the recording, in a program that stops compiling."""
        stops = self._options.warmup > 0 and self.detector.steps < _PATIENCE
        return stops and recording.compiled != self._compiled

    def _open(self, first: int, run_in: int = RUN_IN) -> JaxRecording:
        window = JaxWindow(self._options, first, self.detector.boundary, run_in)
        self._running = JaxRecording(window=window, compiled=self._compilations.count)
        self._running.samples = LoopSamples()
        self._timed = TimedSteps(WholeSteps())
        return self._running

    def _close_window(self, *, drain: bool) -> None:
        recording, self._running = self._running, None
        if recording:
            recording.times = self._timed.describe() if self._timed else None
            recording.stop_samples()
            recording.window.close(drain=drain)
            recording.keep_early_steps()

    def _discard(self) -> None:
        """What was recorded were not steps, or not steps after the warm-up."""
        self._close_window(drain=False)
        self._main = None
