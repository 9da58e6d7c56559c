"""Decides, at each return of the training function, what to record of a JAX program.

    step      0 (compiles)  1 2          3 4      5 6 7        8        9 … 28  29 …
                            not watched  runs in  main window  ends it  timed   nothing, no hook

After each compilation the warm-up starts again, unless each step compiles something. The first two
steps of a window are not kept: their work was requested before the recording began, or before the
loop was kept from running ahead. Of a program that ends before the main window, the second and
third step of the window are kept.

Before a training step has been called twice, another function may have been taken for it: the
sampling, prediction or evaluation between two epochs. The watch goes on, and the training is
recorded instead as soon as it shows.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from stepscope.errors import CaptureError
from stepscope.record.jax import MEMBER, OTHER_PROFILER
from stepscope.record.jax.compilation_counter import CompilationCounter
from stepscope.record.jax.jax_step_detector import UNSURE_STEPS, JaxStepDetector, arrays_in
from stepscope.record.jax.jax_window import RUN_IN, JaxWindow, catch_up, require_session
from stepscope.record.jax.jit_calls import JitCall, JitCallWatch
from stepscope.record.options import RecordOptions
from stepscope.record.patch import ignoring
from stepscope.record.recording import Recording, call_in_forked_children
from stepscope.record.samples.loop_samples import LoopSamples
from stepscope.record.step_times import FEWEST, MOST, CoreQueue, Reading, StepReadings, read_clocks

_LEAD = 1  # steps by which the window opens early, for programs that end soon
# Steps after which a program that never stops compiling is recorded anyway: all of them, or those
# in a row that each compile; the first steps of a program compile two or three times.
_PATIENCE, _IN_A_ROW = 100, 8
_OFTEN = 10  # the same, where most of the run so far compiles one function for other and other shapes
_MOST_WATCHED = 20_000  # calls after a recording; a few microseconds each
_MOST_REPLACED = 3  # recordings: an action, a step of an environment, an epoch
_MOST_SEEN = 100  # steps: on a CPU, JAX gets 32 ahead
_SMALL_BYTES, _MOST_KEPT = 4096, 256  # arrays of a step that are kept
_Returns = list[tuple[int, Reading]]


@dataclass(kw_only=True)
class JaxRecording(Recording):
    """Steps of a JAX program; `compiled` is the number of compilations before it began."""

    window: JaxWindow
    compiled: int
    member: str = MEMBER

    def stop_samples(self) -> None:
        """End sampling; the closest mark relates the samples to the profile."""
        super().stop_samples()
        samples = self.members.get("samples.json")
        if isinstance(samples, dict) and self.window.closest_mark:
            samples["mark"] = self.window.closest_mark

    def keep_early_steps(self) -> None:
        """Where the program ended before the main window, the steps before it count."""
        if not self.window.complete and self.window.early:
            self.window.complete, self.early = self.window.early, True


class JaxRecorder:
    """Watches the compiled functions of this process and records a few training steps.

    Raises CaptureError if this version of JAX lacks what the recorder hooks into.
    """

    framework = "jax"
    why_no_steps = "no function under jax.jit was called repeatedly in this process"

    def __init__(
        self,
        options: RecordOptions,  # what to record
        # Called between two steps, when all requested steps are recorded.
        on_complete: Callable[[JaxRecording], None],
        # Called with the times of steps after the recording (`StepReadings`).
        on_unrecorded: Callable[[dict[str, Any]], None],
        # Called when steps that turned out to be of no training are replaced.
        on_replaced: Callable[[], None] = lambda: None,
    ) -> None:
        require_session()
        self.detector = JaxStepDetector(options.step_every)
        self.problem: str | None = None
        self._options = options
        self._on_complete, self._on_unrecorded = on_complete, on_unrecorded
        self._on_replaced = on_replaced
        self._watched: int | None = None  # calls since a recording was complete
        self._replaced = 0  # complete recordings
        self._timed: StepReadings | None = None
        self._unrecorded: SteadySteps | None = None
        self._boundary: Any = None  # of the steps that were recorded
        self._running: JaxRecording | None = None
        self._was_interrupted = False
        self._main: JaxRecording | None = None
        self._warm = self._compiling = 0  # steps in a row that compiled nothing, or something
        self._compiled: int | None = None
        self._compilations = CompilationCounter()
        self._watch: JitCallWatch | None = JitCallWatch(self._returned)
        call_in_forked_children(self.detach)

    def start(self) -> None:
        if self._options.warmup == 0:
            self._main = self._open(0, run_in=0)

    def close(self) -> None:
        """Stop all recording and watch no more calls; only compilations are still counted."""
        try:
            with ignoring(Exception, then=self._note):
                self._close_window(drain=False)
                self._report_unrecorded()
                if self._replaced and self.best():
                    self._on_replaced()
        finally:
            self._unwatch()

    def detach(self) -> None:
        self._unwatch()
        self._compilations.close()

    def _unwatch(self) -> None:
        watch, self._watch = self._watch, None
        if watch:
            watch.remove()

    @property
    def is_closed(self) -> bool:
        return self._watch is None

    @property
    def compiles_again(self) -> str | None:
        return self._compilations.often

    def best(self) -> JaxRecording | None:
        """The recording, if it has a complete step; one before the warm-up is over at the end."""
        return self._main if self._main and self._main.steps else None

    def _returned(self, call: JitCall) -> None:
        """Training must continue whatever happens in the recorder."""
        try:
            with ignoring(Exception, then=self._note):
                ends_step = self.detector.advance(call.name, call.inputs, call.outputs)
                if self._watched is not None:
                    self._look_for_training(self._watched)
                if ends_step and (self._unrecorded or self._watched is None):
                    self._end_step(self.detector.steps, call.outputs)
                return
        except BaseException:  # of a signal handler of the program, which may come in each step
            self.close() if self._was_interrupted else self._close_window(drain=False)
            self._main, self._was_interrupted = None, True
            raise
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
        self._boundary, self._watched = self.detector.boundary, 0

    def _look_for_training(self, watched: int) -> None:
        """Record again if the recorded steps turn out to be no training, or parts of its steps."""
        self._watched = watched + 1
        if self._replaced < _MOST_REPLACED and self.detector.surpasses(self._boundary):
            self._replaced += 1
            self._unrecorded = self._watched = None
            self._warm = self._compiling = 0
        elif watched >= _MOST_WATCHED and not self._unrecorded:
            self.close()

    def _time_unrecorded(self, steps: "SteadySteps", outputs: Any) -> None:
        if self._warm == 0 and self._compiling < _IN_A_ROW:
            steps.interrupt()  # it compiled something
        steps.step_ended(outputs)
        if steps.is_over or self.detector.boundary is not self._boundary:
            self._report_unrecorded()

    def _report_unrecorded(self) -> None:
        steps, self._unrecorded = self._unrecorded, None
        facts = steps.timed.describe_kinds() if steps else None
        if facts and facts["count"] >= FEWEST:
            self._on_unrecorded(facts)

    def _count_warm_steps(self) -> None:
        compiled = self._compilations.count
        has_new = self._compiled not in (None, compiled)
        self._compiling = self._compiling + 1 if has_new else 0
        self._warm = 0 if has_new else self._warm + 1
        self._compiled = compiled

    def _warm_steps_left(self, done: int) -> int:
        """Steps until the window must open; the run-in is part of the warm-up."""
        wanted = self._options.warmup - RUN_IN + (0 if self.detector.is_sure else UNSURE_STEPS)
        if self._compiling >= _IN_A_ROW:
            return max(wanted - self._compiling, 0)
        return max(min(wanted - self._warm, wanted + self._patience - done), 0)

    @property
    def _patience(self) -> int:
        return _OFTEN if self.compiles_again else _PATIENCE

    def _end_recorded_step(self, recording: JaxRecording, outputs: Any) -> None:
        window = recording.window
        if window.was_preempted:
            raise CaptureError(OTHER_PROFILER)
        if window.boundary not in (None, self.detector.boundary) or self._compiled_during(recording):
            self._close_window(drain=False)  # these were not steps, or not steps after the warm-up
            self._main = None
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
        stops = self._options.warmup > 0 and self.detector.steps < self._patience
        return stops and self._compiling < _IN_A_ROW and recording.compiled != self._compiled

    def _open(self, first: int, run_in: int = RUN_IN) -> JaxRecording:
        window = JaxWindow(self._options, first, self.detector.boundary, run_in)
        self._running = JaxRecording(window=window, compiled=self._compilations.count)
        window.start()
        self._running.samples = LoopSamples()
        self._timed = StepReadings(queued=CoreQueue())
        return self._running

    def _close_window(self, *, drain: bool) -> None:
        if recording := self._running:
            if self._timed and (times := self._timed.describe()):
                recording.times = times | {"each": self._timed.describe_each()}
            recording.stop_samples()
            recording.window.close(drain=drain)
            recording.keep_early_steps()
            self._running = None  # not before: a signal handler of the program may raise meanwhile


class SteadySteps:
    """Times steps between returns at which the loop is equally far ahead of its devices.

    JAX returns from a call before the work is done, so the time between two returns is unrelated to
    the length of a step. But between two returns at which the loop is equally far ahead, as many
    steps were completed as were begun: a step takes this time divided by their number. How far the
    loop is ahead is seen from which results are ready, which asks the devices nothing.
    """

    def __init__(self) -> None:
        self._pending: list[list[Any]] = []
        self._returns: dict[int, _Returns] = defaultdict(list)  # by the number of steps ahead
        self._seen = 0

    @property
    def is_over(self) -> bool:
        """Whether enough steps have been timed, or the loop shows no steady steps."""
        return _covered(self._longest) >= MOST or self._seen > _MOST_SEEN

    @property
    def timed(self) -> StepReadings:
        """The steps that have been timed, at most as many as are wanted."""
        steps = StepReadings()
        for (first, before), (last, after) in pairwise(self._longest):
            for place in range(last - first):
                if steps.is_complete:
                    break
                begun, ended = place / (last - first), (place + 1) / (last - first)
                steps.steps.append((_between(before, after, begun), _between(before, after, ended)))
        return steps

    def step_ended(self, outputs: Any) -> None:
        self._seen += 1
        self._pending.append(_small(outputs))
        self._pending = [arrays for arrays in self._pending if not _are_ready(arrays)]
        self._returns[len(self._pending)].append((self._seen, read_clocks()))

    def interrupt(self) -> None:
        """The step that has begun is not like others."""
        self._returns.clear()

    @property
    def _longest(self) -> _Returns:
        """The returns at which the loop was equally far ahead, that have most steps between."""
        return max(self._returns.values(), key=_covered, default=[])


def _covered(returns: _Returns) -> int:
    """Steps between the first and the last of some returns."""
    return returns[-1][0] - returns[0][0] if returns else 0


def _between(before: Reading, after: Reading, part: float) -> Reading:
    def at(first: int, last: int) -> int:
        return first + round(part * (last - first))

    elapsed_ns, cpu_ns = at(before.elapsed_ns, after.elapsed_ns), at(before.cpu_ns, after.cpu_ns)
    process_cpu_ns = at(before.process_cpu_ns, after.process_cpu_ns)
    faults = at(before.page_faults, after.page_faults or 0) if before.page_faults else None
    return Reading(elapsed_ns, cpu_ns, process_cpu_ns, {}, faults)


def _small(outputs: Any) -> list[Any]:
    """Small arrays: all outputs of a program are ready at once, and large ones take memory.

    Keys of random numbers do not say whether they are ready.
    """
    arrays = (array for array in arrays_in(outputs) if hasattr(array, "is_ready"))
    return [array for array in arrays if array.nbytes <= _SMALL_BYTES][:_MOST_KEPT]


def _are_ready(arrays: list[Any]) -> bool:
    """Whether the work is done; not known, if all results were donated to the next step."""
    return any(array.is_ready() for array in arrays if not array.is_deleted())
