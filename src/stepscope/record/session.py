"""One capture, from the start of a run to the file; frameworks attach when the run imports them.

A run that imports both torch and JAX is watched in both. The first framework with all requested
steps makes the capture; if the run ends before that, the one with any.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from stepscope.errors import CaptureError, has_no_descriptors
from stepscope.record.capture_file import CaptureFile, Member
from stepscope.record.jax import cannot_record
from stepscope.record.manifest import Run, RunResult, build_manifest
from stepscope.record.memory.out_of_memory import AllocationFailure, verdict
from stepscope.record.patch import ignoring, pass_on
from stepscope.record.recording import Recording
from stepscope.record.run_shares.run_shares import RunClock, unrecorded_training
from stepscope.record.unreplaced import OwnFunctions, os

if TYPE_CHECKING:
    from stepscope.record.jax.jax_recorder import JaxRecorder
    from stepscope.record.recorder import Recorder

    AnyRecorder: TypeAlias = Recorder | JaxRecorder


@dataclass(frozen=True)
class Ending:
    """How a run or a block ended."""

    outcome: str = "ended"  # `ended`, `raised` or `interrupted`
    detail: str = "ended"  # in words, to complete the sentence "the run …"

    @classmethod
    def of_block(cls, error: BaseException | None) -> Ending:
        """Of a `with` block, from its exception."""
        if error is None:
            return cls()
        if isinstance(error, KeyboardInterrupt):
            return cls("interrupted", "was interrupted")
        return cls("raised", f"raised {type(error).__name__}")


class OfOneProcess:
    """A session, which a child that the program forks leaves alone: the file is its parent's."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def is_forked(self) -> bool:
        return os.getpid() != self._pid


class Session(OfOneProcess):
    """Records the run in this process and writes the capture.

    The file is written as soon as the last requested step is recorded, so that nothing that
    happens to a long run later can lose it; otherwise when the run ends.
    """

    def __init__(self, run: Run, path: Path, overwrite: bool = False, clock: RunClock | None = None) -> None:
        super().__init__()
        self.file = CaptureFile(path, run.rank, overwrite)
        self.result: RunResult | None = None
        self.failure: str | None = None
        self.run = run
        self._recorders: list[AnyRecorder] = []
        self._clock = clock
        self._refused: str | None = None
        self.has_memory = False
        self._members: dict[str, Member] = {}

    @property
    def path(self) -> Path:
        return self.file.path

    @property
    def is_over(self) -> bool:
        """Whether no more steps will be recorded."""
        return bool(self.result or self.failure) or all(one.is_closed for one in self._recorders)

    def attach(self, only_training: bool = False) -> Recorder:
        """Begin to watch; torch must have been imported."""
        from stepscope.record.recorder import Recorder

        if self._clock:
            self._clock.attach()
        recorder = Recorder(
            self.run.options, self._complete, self._reopen, self._add_unrecorded, only_training, self._clock
        )
        self._recorders.append(recorder)
        return recorder

    def attach_jax(self) -> JaxRecorder | None:
        """Begin to watch; JAX must have been imported. None if it cannot be recorded."""
        try:
            from stepscope.record.jax.jax_recorder import JaxRecorder

            recorder = JaxRecorder(self.run.options, self._complete, self._add_unrecorded, self._reopen)
        except (ImportError, AttributeError, CaptureError) as error:
            version = str(getattr(sys.modules["jax"], "__version__", "of unknown version"))
            self._refused = cannot_record(version, str(error))
            return None
        self._recorders.append(recorder)
        return recorder

    def detach(self) -> None:
        for recorder in self._recorders:
            recorder.detach()
        if self._clock:
            self._clock.detach()

    def run_out_of_memory(self, failed: AllocationFailure) -> str | None:
        """Keep the step that ran out of memory; the verdict, or None where none was recorded."""
        from stepscope.record.recorder import Recorder

        for recorder in self._recorders:
            if isinstance(recorder, Recorder) and recorder.memory:
                storages = recorder.memory.storages()
                recording = recorder.end_step_now()
                self._members = recorder.memory.members_at_failure(failed, storages, recording)
                return verdict(failed, storages)
        return None

    def finish(self, ending: Ending, only_with_steps: bool = False) -> None:
        """Write the capture, unless that is done; with `only_with_steps` none without steps."""
        if self.is_forked:
            return
        shares = self._run_shares(ended=True)
        unlike = unrecorded_training(self._clock.log) if self._clock and shares else None
        for recorder in self._recorders:
            recorder.close()
        if self._clock:
            self._clock.detach()
        if self.result is None and self.failure is None:
            chosen = self._chosen()
            recording = chosen.best() if chosen else None
            result = self._judge(chosen, recording, ending)
            if result.steps_seen or not only_with_steps:
                self._write(chosen, recording, replace(result, run_shares=shares))
        elif shares:
            self._add({"run_shares": shares})
        self._warn(unlike)
        if compiles_again := getattr(self._chosen(), "compiles_again", None):
            self._warn(compiles_again)
            self._add({"compiles_again": True})
        for recorder in self._recorders:
            recorder.detach()

    def _warn(self, warning: str | None) -> None:
        if warning and self.result and self.file.is_written:
            self._add({"warnings": (*self.result.warnings, warning)})

    def _complete(self, recording: Recording) -> None:
        for recorder in self._recorders:
            if recorder.best() is not recording:
                recorder.close()
        chosen = self._chosen(recording)
        result = self._result(chosen, "complete", f"recorded {recording.span}{_meaning(chosen)}", recording)
        shares = self._run_shares(ended=False)
        self._write(chosen, recording, replace(result, run_shares=shares))
        if self._clock and shares:
            self._clock.publish_now_and_then(lambda shares: self._add({"run_shares": shares}))

    def _run_shares(self, *, ended: bool) -> dict[str, Any] | None:
        chosen = self._chosen()
        is_torch = chosen is not None and chosen.framework == "pytorch"
        return self._clock.describe(ended=ended) if self._clock and is_torch else None

    def _add_unrecorded(self, facts: dict[str, Any]) -> None:
        self._add({"unrecorded_steps": facts})

    def _add(self, facts: dict[str, Any]) -> None:
        """The capture is complete without it, so nothing is said where this fails."""
        if self.result is not None:
            self.result = replace(self.result, **facts)
            with ignoring(OSError, RuntimeError):
                self.file.update_manifest(facts)

    def _reopen(self) -> None:
        """Training begins: it replaces what was recorded before."""
        self.result = None

    def _chosen(self, recording: Recording | None = None) -> AnyRecorder | None:
        """The recorder of `recording`; by default one with a step, or else any."""

        def rank(recorder: AnyRecorder) -> tuple[bool, bool, bool]:
            best = recorder.best()
            return best is recording is not None, best is not None, recorder.detector.steps > 0

        return max(self._recorders, key=rank, default=None)

    def _judge(self, recorder: AnyRecorder | None, recording: Recording | None, ending: Ending) -> RunResult:
        steps = recorder.detector.steps if recorder else 0
        if steps == 0:
            outcome = "no_steps" if ending.outcome == "ended" else ending.outcome
            message = f"the run {ending.detail}; {self._why_no_steps()}"
            return self._result(recorder, outcome, message, None)
        unit = "training step" if recorder and recorder.detector.trains else "step"
        message = f"the run {ending.detail} after {steps} {unit}{'s' * (steps != 1)}; "
        message += f"recorded {recording.span if recording else 'no complete step'}{_meaning(recorder)}"
        outcome = "ended_early" if ending.outcome == "ended" else ending.outcome
        return self._result(recorder, outcome, message, recording)

    def _why_no_steps(self) -> str:
        if self._refused:
            return self._refused
        why = [recorder.why_no_steps for recorder in self._recorders]
        return " and ".join(why) or "it imported neither torch nor JAX"

    def _result(
        self, recorder: AnyRecorder | None, outcome: str, message: str, recording: Recording | None
    ) -> RunResult:
        return RunResult(
            outcome=outcome,
            message=message,
            steps_seen=recorder.detector.steps if recorder else 0,
            steps_recorded=tuple(recording.steps) if recording else (),
            step_ends_after=recorder.detector.boundary_name if recorder else None,
            step_is=recorder.detector.step_is if recorder else None,
            warnings=tuple(self._warnings(recorder, recording)),
            loaders=tuple(recording.loaders) if recording else (),
            created=tuple(recording.created) if recording else (),
            updated_modules=recording.updated if recording else {},
            recorded_steps=recording.times if recording else None,
        )

    def _warnings(self, recorder: AnyRecorder | None, recording: Recording | None) -> list[str]:
        warnings = []
        if recorder and recorder.problem:
            warnings.append(f"stepscope could not record everything: {recorder.problem}")
        if recording and recording.warning:
            warnings.append(recording.warning)
        if recording and recording.early:
            warnings.append(
                f"the run ended before steps after {self.run.options.warmup} of warm-up were recorded, "
                "so the recorded steps are warm-up steps and may be slower than later ones"
            )
        return warnings

    def _write(self, recorder: AnyRecorder | None, recording: Recording | None, result: RunResult) -> None:
        """A capture that cannot be written must not stop the training run."""
        self.failure = None
        members = {**(recording.all_members if recording else {}), **self._members}
        try:
            with OwnFunctions():
                manifest = build_manifest(self.run, result, recorder.framework if recorder else None)
                self.file.write(manifest, recording.modules if recording else {"roots": []}, members)
        except Exception as error:
            pass_on(error)
            self.failure = f"cannot write {self.path}: {reason(error)}"
            if has_no_descriptors(error):
                self.failure += " (`ulimit -n` raises the limit)"
            if recording:
                self.failure += f"; lost: {recording.span}"
        else:
            self.result, self.has_memory = result, "memory.json" in members


def reason(error: Exception) -> str:
    """What the system refused: no space left on device, a folder that is gone; or what failed."""
    if isinstance(error, OSError | RuntimeError):
        return getattr(error, "strerror", None) or str(error)
    return f"{type(error).__name__}: {error}"


def _meaning(recorder: AnyRecorder | None) -> str:
    """The definition of a step, where it is not a training step."""
    step_is = recorder.detector.step_is if recorder and not recorder.detector.trains else None
    return f"; a step is {step_is}" if step_is else ""
