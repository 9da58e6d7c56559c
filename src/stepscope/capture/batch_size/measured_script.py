"""A training script, run until its steps are measured."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from stepscope.capture.batch_size.request import Request
from stepscope.capture.patch import AfterImport
from stepscope.capture.script_runner import Program
from stepscope.scratch import relocated, relocated_word

Json = dict[str, Any]


class Watcher(Protocol):
    """Receives a script's steps.

    Attributes:
        count: steps that have ended.
        why_no_steps: why there are none, if there are none.
    """

    count: int
    why_no_steps: str

    def ended(self) -> None:
        """A training step ends here."""

    def result(self) -> Json:
        """What is known so far."""


WatcherT = TypeVar("WatcherT")
Makers = Mapping[str, Callable[[], WatcherT]]


def run_script(request: Request, finish: Callable[[Json], object]) -> Json:
    """Run the script; `finish` ends the process once enough is measured.

    Returns:
        What was measured by the time the script ended by itself.
    """
    return run_steps(request, steps_of_frameworks(request, finish))


def steps_of_frameworks(request: Request, finish: Callable[[Json], object]) -> Makers[Any]:
    """What makes the measured steps of each framework, by the name of its module."""

    def torch_steps() -> Any:
        from stepscope.capture.batch_size.torch_steps import TorchSteps, watch_optimizers

        return watch_optimizers(TorchSteps(request, finish))

    def jax_steps() -> Any:
        from stepscope.capture.batch_size.jax_steps import JaxSteps

        return JaxSteps(request, finish)

    return {"torch": torch_steps, "jax": jax_steps}


def run_steps(request: Request, makers: Makers[Watcher]) -> Json:
    """Run the script and report its steps to a watcher for each framework that it imports.

    Args:
        request: what to run.
        makers: make a watcher, once the framework of this name is imported.
    """
    watched = watch_imports(makers)
    try:
        arguments = [relocated_word(word) for word in request.arguments]
        target = request.module or relocated(request.entry)
        Program(target, arguments, is_module=request.module is not None).execute()
    except SystemExit as error:
        if error.code not in (None, 0):
            raise
    if not watched:
        return {"outcome": "no_steps", "why": f"it never imported {' or '.join(makers)}"}
    steps = max(watched, key=lambda steps: steps.count)
    if steps.count == 0:
        return {"outcome": "no_steps", "why": "; ".join(one.why_no_steps for one in watched)}
    return steps.result()


def watch_imports(makers: Makers[WatcherT]) -> list[WatcherT]:
    """A list that gets what each maker makes, when the module of its name has been imported."""
    made: list[WatcherT] = []
    for name, make in makers.items():
        AfterImport(name, functools.partial(_add, made, make)).install()
    return made


def _add(made: list[WatcherT], make: Callable[[], WatcherT]) -> None:
    made.append(make())
