"""A training script, run until its steps are measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepscope.capture.batch.request import Request
from stepscope.capture.imports import AfterImport
from stepscope.capture.program import Program

Json = dict[str, Any]


def run_script(request: Request, finish: Callable[[Json], object]) -> Json:
    """Run the script; `finish` ends the process once enough is measured.

    Returns:
        What was measured by the time the script ended by itself.
    """
    watched: list[Any] = []
    watch = AfterImport("torch", lambda: watched.append(_attach(request, finish)))
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
    result: Json = steps.result()
    return result


def _attach(request: Request, finish: Callable[[Json], object]) -> Any:
    from stepscope.capture.batch.steps import Steps
    from stepscope.capture.cycle import StepCycle
    from stepscope.capture.optimizers import OptimizerWatch

    steps = Steps(request, finish)
    cycle = StepCycle()

    def stepped(optimizer: Any) -> None:
        if steps.recording:
            steps.recording.optimizers[id(optimizer)] = optimizer
        if cycle.ends_step(optimizer):
            steps.ended()

    OptimizerWatch(stepped)
    return steps
