"""One capture, from the start of a run to the file; torch comes in only when the run has it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.capture.archive import write_capture
from stepscope.capture.manifest import Result, Run, build_manifest

if TYPE_CHECKING:
    from stepscope.capture.recorder import Recorder, Recording


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
        self.recorder: Recorder | None = None
        self.run = run
        self._pid = os.getpid()

    @property
    def is_forked(self) -> bool:
        """Whether this is a child that the run has forked: the capture is its parent's."""
        return os.getpid() != self._pid

    def attach(self) -> Recorder:
        """Begin to watch; torch must have been imported."""
        from stepscope.capture.recorder import Recorder

        self.recorder = Recorder(self.run.options, self._complete)
        return self.recorder

    def finish(self, ending: Ending) -> None:
        """Close the capture, unless that was done before; a forked child leaves it alone."""
        if self.result is not None or self.failure is not None or self.is_forked:
            return
        recording = None
        if self.recorder:
            self.recorder.close()
            recording = self.recorder.best()
        self._write(recording, self._judge(recording, ending))

    def _complete(self, recording: Recording) -> None:
        self._write(recording, self._result("complete", f"recorded {_span(recording)}", recording))

    def _judge(self, recording: Recording | None, ending: Ending) -> Result:
        steps = self.recorder.cycle.steps if self.recorder else 0
        if steps == 0:
            outcome = "no_steps" if ending.outcome == "ended" else ending.outcome
            return self._result(outcome, f"the run {ending.detail}{self._why_no_steps()}", None)
        message = f"the run {ending.detail} after {_count(steps)}; recorded {_span(recording)}"
        outcome = "ended_early" if ending.outcome == "ended" else ending.outcome
        return self._result(outcome, message, recording)

    def _why_no_steps(self) -> str:
        if self.recorder is None:
            return "; it never imported torch"
        return "; no optimizer stepped in this process"

    def _result(self, outcome: str, message: str, recording: Recording | None) -> Result:
        recorder = self.recorder
        return Result(
            outcome=outcome,
            message=message,
            steps_seen=recorder.cycle.steps if recorder else 0,
            steps_recorded=tuple(recording.steps) if recording else (),
            step_ends_after=recorder.cycle.anchor_name if recorder else None,
            warnings=tuple(self._warnings(recording)),
            loaders=tuple(recording.loaders) if recording else (),
        )

    def _warnings(self, recording: Recording | None) -> list[str]:
        warnings = []
        if self.recorder and self.recorder.problem:
            warnings.append(f"stepscope could not record everything: {self.recorder.problem}")
        if recording and recording.early:
            warnings.append(
                f"the run ended before its {self.run.options.warmup} warm-up steps and one more, "
                "so the steps recorded are warm-up steps and may be slower than later ones"
            )
        return warnings

    def _write(self, recording: Recording | None, result: Result) -> None:
        """A capture that cannot be written must not take the training run down with it."""
        modules = recording.modules if recording else {"roots": []}
        export = recording.window.export if recording else None
        try:
            write_capture(self.path, build_manifest(self.run, result), modules, export)
        except (OSError, RuntimeError) as error:
            self.failure = f"cannot write {self.path}: {error}"
        else:
            self.result = result


def _span(recording: Recording | None) -> str:
    if recording is None or not recording.steps:
        return "no complete step"
    first, last = recording.steps[0], recording.steps[-1]
    return f"step {first}" if first == last else f"steps {first} to {last}"


def _count(steps: int) -> str:
    return "1 training step" if steps == 1 else f"{steps} training steps"
