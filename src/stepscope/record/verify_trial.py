"""One trial of `stepscope verify`: a program in a fresh process, unmodified or with changes.

    python -m stepscope.record.verify_trial SPECIFICATION

The specification is JSON (`Trial`); the result is a JSON file (`docs/guide/verify.md`). A trial
times a few training steps, or records them to a capture, and then ends the program.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.base.scratch import Scratch, WriteWatch, enter, relocated, relocated_word
from stepscope.errors import CaptureError
from stepscope.record.device_times import wait_for_devices
from stepscope.record.manifest import Run
from stepscope.record.options import RecordOptions
from stepscope.record.patch import AfterImport
from stepscope.record.script_runner import Program
from stepscope.record.session import Ending, Session
from stepscope.record.step_detector import StepDetector
from stepscope.record.step_times import StepReadings


@dataclass(frozen=True)
class Trial:
    """What a trial does."""

    target: str  # the program
    arguments: Sequence[str]
    is_module: bool
    warmup: int  # training steps to skip first
    steps: int  # training steps to time or to record
    result: str  # the JSON file to write
    changes: Sequence[tuple[str, Mapping[str, Any]]] = ()  # name and parameters of each change to apply
    capture: str | None = None  # the capture to write; None to time the steps instead
    # How the project is protected (`stepscope.base.scratch`); None for not at all.
    scratch: Mapping[str, Any] | None = None
    store: str = ""  # a folder for the temporary data of the scratch view

    @property
    def program(self) -> Program:
        target = self.target if self.is_module else relocated(self.target)
        return Program(target, [relocated_word(word) for word in self.arguments], self.is_module)


class Stopped(SystemExit):
    """Ends the program when everything is measured."""


class StoppingSession(Session):
    """A recording session that ends the program after the last requested step."""

    def _complete(self, recording: Any) -> None:
        super()._complete(recording)
        raise Stopped(0)


def run_trial(trial: Trial) -> dict[str, Any]:
    facts: dict[str, Any] = {"failure": None, "steps_ns": [], "applied": {}}
    applied: list[tuple[str, Any]] = []
    measured: list[Callable[[], dict[str, Any]]] = []

    def begin() -> None:
        from stepscope.record.applied import CHANGES

        applied.extend((name, CHANGES[name](**values)) for name, values in trial.changes)
        timer = None if trial.capture else StepTimer(trial.warmup, trial.steps, Stopped(0))
        measured.append(timer.finish if timer else _record(trial))

    watch = AfterImport("torch", begin)
    watch.install()
    try:
        trial.program.check()
        trial.program.execute()
    except Stopped:
        pass
    except SystemExit as error:
        if error.code not in (None, 0):
            facts["failure"] = f"it exited with {error.code!r}"
    except CaptureError as error:
        facts["failure"] = str(error)
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__)
        facts["failure"] = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
    watch.remove()
    for finish in measured:
        facts.update(finish())
    facts["applied"] = {name: change.evidence() for name, change in applied}
    torch = sys.modules.get("torch")
    facts["torch"] = str(torch.__version__) if torch else None
    facts["threads"] = torch.get_num_threads() if torch else None
    return facts


def _record(trial: Trial) -> Callable[[], dict[str, Any]]:
    """Record from now on; what is returned ends that and tells how many steps there are."""
    run = Run(trial.program.command, RecordOptions(trial.warmup, trial.steps))
    session = StoppingSession(run, Path(str(trial.capture)))
    session.attach(only_training=True)

    def finish() -> dict[str, Any]:
        session.finish(Ending())
        if session.result is None:
            return {"recorded": 0}
        return {"recorded": len(session.result.steps_recorded), "steps_seen": session.result.steps_seen}

    return finish


class StepTimer:
    """Measures the time from the end of each step to the end of the next, then ends the program.

    Also measures the share spent loading batches and in optimizers.
    """

    def __init__(self, warmup: int, steps: int, stop: BaseException) -> None:
        from stepscope.record.optimizers import OptimizerWatch
        from stepscope.record.part_timer import PartTimer

        self._warmup, self._steps, self._stop = max(warmup, 1), steps, stop
        self._detector = StepDetector()
        self._seen = 0
        self._clock = PartTimer()
        self._times = StepReadings(self._clock.read)
        self._watch = OptimizerWatch(self._stepped)

    def finish(self) -> dict[str, Any]:
        """Length, CPU time of this process, and parts of each timed step, ns."""
        self._watch.close()
        self._clock.remove()
        parts = ("data_loading", "optimizer")
        return {
            "steps_ns": self._times.lengths_ns,
            "cpu_ns": self._times.process_cpu_ns,
            "parts_ns": {name: self._times.part_ns(name) for name in parts},
            "steps_seen": self._seen,
        }

    def _stepped(self, optimizer: Any) -> None:
        if not self._detector.advance(optimizer):
            return
        wait_for_devices()  # a step ends with its device work: else steps would not be comparable
        self._seen += 1
        if self._seen >= self._warmup:
            self._times.follow()
        if self._times.count >= self._steps:
            raise self._stop


def main() -> None:
    trial = Trial(**json.loads(sys.argv[1]))
    watch = _enter_scratch(trial)
    facts = run_trial(trial)
    if watch is not None:
        facts["outside_writes"] = watch.stop()
    partial = Path(f"{trial.result}.partial")
    partial.write_text(json.dumps(facts), "utf-8")
    partial.replace(trial.result)
    _leave()


def _enter_scratch(trial: Trial) -> WriteWatch | None:
    """See the scratch view from now on, at the same working folder."""
    if trial.scratch is None:
        return None
    folder = Path.cwd()
    results = [str(Path(path).parent) for path in (trial.result, trial.capture) if path]
    watch = enter(Scratch.from_json(trial.scratch), trial.store, results)
    os.chdir(relocated(str(folder)))
    return watch


def _leave() -> None:
    """Exit now in distributed runs: threads of the process group that still run while the
    interpreter shuts down abort the process; all results are already written."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


if __name__ == "__main__":
    # The program becomes `__main__`; what it pickles must not find this file there.
    from stepscope.record import verify_trial as _trial

    _trial.main()
