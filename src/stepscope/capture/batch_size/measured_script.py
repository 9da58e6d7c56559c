"""A training script, run until its steps are measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from stepscope.capture.batch_size.request import Request
from stepscope.capture.import_hooks import AfterImport
from stepscope.capture.script_runner import Program
from stepscope.scratch import relocated, relocated_word

Json = dict[str, Any]


class Watcher(Protocol):
    """Receives a script's steps."""

    count: int

    def ended(self) -> None:
        """A training step ends here."""

    def optimizer_stepped(self, optimizer: Any) -> None:
        """An optimizer has stepped, which may or may not end the training step."""

    def result(self) -> Json:
        """What is known so far."""


def run_script(request: Request, finish: Callable[[Json], object]) -> Json:
    """Run the script; `finish` ends the process once enough is measured.

    Returns:
        What was measured by the time the script ended by itself.
    """

    def measuring() -> Watcher:
        from stepscope.capture.batch_size.measured_steps import Steps

        return Steps(request, finish)

    return run_steps(request, measuring)


def run_steps(request: Request, make: Callable[[], Watcher]) -> Json:
    """Run the script and report its steps to a watcher, made when it has imported torch."""
    watched: list[Watcher] = []
    watch = AfterImport("torch", lambda: watched.append(_attach(make())))
    watch.install()
    try:
        arguments = [relocated_word(word) for word in request.arguments]
        target = request.module or relocated(request.entry)
        Program(target, arguments, is_module=request.module is not None).execute()
    except SystemExit as error:
        if error.code not in (None, 0):
            raise
    if not watched:
        return {"outcome": "no_steps", "why": "it never imported torch"}
    steps = watched[0]
    if steps.count == 0:
        return {"outcome": "no_steps", "why": "no optimizer stepped in its process"}
    return steps.result()


def _attach(steps: Watcher) -> Watcher:
    from stepscope.capture.optimizers import OptimizerWatch
    from stepscope.capture.step_detector import StepDetector

    detector = StepDetector()

    def stepped(optimizer: Any) -> None:
        steps.optimizer_stepped(optimizer)
        if detector.advance(optimizer):
            steps.ended()

    OptimizerWatch(stepped)
    return steps
