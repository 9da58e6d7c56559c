"""One capture, from the start of a run to the file; a framework comes in only when the run has it.

A run that imports both torch and JAX is watched in both. The first that has all steps asked for
makes the capture; where the run ends before that, the one that has any.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from stepscope.capture.archive import write_capture
from stepscope.capture.jax import too_old
from stepscope.capture.manifest import Result, Run, build_manifest
from stepscope.errors import CaptureError

if TYPE_CHECKING:
    from stepscope.capture.jax.recorder import JaxRecorder
    from stepscope.capture.recorder import Recorder


class Recording(Protocol):
    """Consecutive steps that a recorder has recorded, with what is needed to use them."""

    early: bool
    modules: dict[str, Any]
    loaders: list[dict[str, Any]]
    member: str

    @property
    def steps(self) -> list[int]:
        """The steps recorded in full."""

    def export(self, path: Path) -> object:
        """Write the profiler's own file to `path`."""


@dataclass(frozen=True)
class Ending:
    """How a run ended.

    Attributes:
        outcome: `ended`, `raised` or `interrupted`.
        detail: in words, as the end of "the run …".
    """

    outcome: str = "ended"
    detail: str = "ended"


class Session:
    """Records the run that goes on in this process and writes the capture.

    The file is written as soon as the last step asked for is recorded, so that nothing which
    happens to a long run later can lose it; else when the run ends.
    """

    def __init__(self, run: Run, path: Path) -> None:
        self.path = path
        self.result: Result | None = None
        self.failure: str | None = None
        self.run = run
        self._recorders: list[Recorder | JaxRecorder] = []
        self._refused: str | None = None
        self._pid = os.getpid()

    @property
    def is_forked(self) -> bool:
        """Whether this is a child that the run has forked: the capture is its parent's."""
        return os.getpid() != self._pid

    def attach(self, only_training: bool = False) -> Recorder:
        """Begin to watch, perhaps for optimizers only; torch must have been imported."""
        from stepscope.capture.recorder import Recorder

        recorder = Recorder(self.run.options, self._complete, self._reopen, only_training)
        self._recorders.append(recorder)
        return recorder

    def attach_jax(self) -> JaxRecorder | None:
        """Begin to watch; JAX must have been imported. None where it is one that cannot be."""
        try:
            from stepscope.capture.jax.recorder import JaxRecorder

            recorder = JaxRecorder(self.run.options, self._complete)
        except (ImportError, AttributeError):
            self._refused = too_old(str(getattr(sys.modules["jax"], "__version__", "another")))
        except CaptureError as error:
            self._refused = str(error)
        else:
            self._recorders.append(recorder)
            return recorder
        return None

    def finish(self, ending: Ending) -> None:
        """Close the capture, unless that was done before; a forked child leaves it alone."""
        if self.is_forked:
            return
        for recorder in self._recorders:
            recorder.close()
        if self.result is not None or self.failure is not None:
            return
        chosen = self._chosen()
        recording = chosen.best() if chosen else None
        self._write(chosen, recording, self._judge(chosen, recording, ending))

    def _complete(self, recording: Recording) -> None:
        for recorder in self._recorders:
            if recorder.best() is not recording:
                recorder.close()
        chosen = self._chosen(recording)
        message = f"recorded {_span(recording)}{_meaning(chosen)}"
        self._write(chosen, recording, self._result(chosen, "complete", message, recording))

    def _reopen(self) -> None:
        """Training begins: what was recorded before it is not what the run is about."""
        self.result = None

    def _chosen(self, recording: Recording | None = None) -> Recorder | JaxRecorder | None:
        """The recorder that made `recording`; without one that with a step, or else any."""

        def rank(one: Recorder | JaxRecorder) -> tuple[bool, bool, bool]:
            best = one.best()
            return best is recording is not None, best is not None, one.cycle.steps > 0

        return max(self._recorders, key=rank, default=None)

    def _judge(
        self,
        recorder: Recorder | JaxRecorder | None,
        recording: Recording | None,
        ending: Ending,
    ) -> Result:
        steps = recorder.cycle.steps if recorder else 0
        if steps == 0:
            outcome = "no_steps" if ending.outcome == "ended" else ending.outcome
            message = f"the run {ending.detail}; {self._why_no_steps()}"
            return self._result(recorder, outcome, message, None)
        message = f"the run {ending.detail} after {_count(steps, recorder)}; "
        message += f"recorded {_span(recording)}{_meaning(recorder)}"
        outcome = "ended_early" if ending.outcome == "ended" else ending.outcome
        return self._result(recorder, outcome, message, recording)

    def _why_no_steps(self) -> str:
        if self._refused:
            return self._refused
        why = [recorder.why_no_steps for recorder in self._recorders]
        return " and ".join(why) or "it imported neither torch nor JAX"

    def _result(
        self,
        recorder: Recorder | JaxRecorder | None,
        outcome: str,
        message: str,
        recording: Recording | None,
    ) -> Result:
        return Result(
            outcome=outcome,
            message=message,
            steps_seen=recorder.cycle.steps if recorder else 0,
            steps_recorded=tuple(recording.steps) if recording else (),
            step_ends_after=recorder.cycle.anchor_name if recorder else None,
            step_is=recorder.cycle.step_is if recorder else None,
            warnings=tuple(self._warnings(recorder, recording)),
            loaders=tuple(recording.loaders) if recording else (),
        )

    def _warnings(
        self, recorder: Recorder | JaxRecorder | None, recording: Recording | None
    ) -> list[str]:
        warnings = []
        if recorder and recorder.problem:
            warnings.append(f"stepscope could not record everything: {recorder.problem}")
        if recording and recording.early:
            warnings.append(
                f"the run ended before its {self.run.options.warmup} warm-up steps and one more, "
                "so the steps recorded are warm-up steps and may be slower than later ones"
            )
        return warnings

    def _write(
        self,
        recorder: Recorder | JaxRecorder | None,
        recording: Recording | None,
        result: Result,
    ) -> None:
        """A capture that cannot be written must not take the training run down with it."""
        manifest = build_manifest(self.run, result, recorder.framework if recorder else None)
        modules = recording.modules if recording else {"roots": []}
        try:
            if recording:
                write_capture(
                    self.path, manifest, modules, recording.export, member=recording.member
                )
            else:
                write_capture(self.path, manifest, modules, None)
        except (OSError, RuntimeError) as error:
            self.failure = f"cannot write {self.path}: {error}"
        else:
            self.result = result


def _span(recording: Recording | None) -> str:
    if recording is None or not recording.steps:
        return "no complete step"
    first, last = recording.steps[0], recording.steps[-1]
    return f"step {first}" if first == last else f"steps {first} to {last}"


def _count(steps: int, recorder: Recorder | JaxRecorder | None) -> str:
    step = "step" if recorder and recorder.cycle.step_is else "training step"
    return f"1 {step}" if steps == 1 else f"{steps} {step}s"


def _meaning(recorder: Recorder | JaxRecorder | None) -> str:
    """What a step is, where it is no training step."""
    step = recorder.cycle.step_is if recorder else None
    return f"; a step is {step}" if step else ""
