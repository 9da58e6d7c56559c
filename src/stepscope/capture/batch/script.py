"""A training script, run until its steps are measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from stepscope.capture.batch.request import Request
from stepscope.capture.imports import AfterImport
from stepscope.capture.program import Program

Json = dict[str, Any]


class Watcher(Protocol):
    """What is told of a script's steps."""

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
        from stepscope.capture.batch.steps import Steps

        return Steps(request, finish)

    return run_steps(request, measuring)


def run_steps(request: Request, make: Callable[[], Watcher]) -> Json:
    """Run the script and tell a watcher, made when it has imported torch, of its steps."""
    watched: list[Watcher] = []
    watch = AfterImport("torch", lambda: watched.append(_attach(make())))
    watch.install()
    try:
        Program(request.entry, request.arguments).execute()
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
    from stepscope.capture.cycle import StepCycle
    from stepscope.capture.optimizers import OptimizerWatch

    cycle = StepCycle()

    def stepped(optimizer: Any) -> None:
        steps.optimizer_stepped(optimizer)
        if cycle.ends_step(optimizer):
            steps.ended()

    OptimizerWatch(stepped)
    return steps
