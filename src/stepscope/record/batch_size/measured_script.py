"""A training script, or SKYLINE's provider functions, run until the steps are measured.

Source: Yu et al., Skyline (UIST 2020), "Provider Functions".
"""

import functools
import io
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from stepscope.base.scratch import original_path, relocated, relocated_word
from stepscope.errors import CaptureError
from stepscope.record.batch_size.request import RunRequest
from stepscope.record.patch import AfterImport
from stepscope.record.script_runner import Program

Json = dict[str, Any]
Makers = Mapping[str, Callable[[], Any]]  # of `Steps`, or of `Estimate`
_MODULE = "__stepscope_entry__"


def run_entry(request: RunRequest, finish: Callable[[Json], object]) -> Json:
    """Run the entry; `finish` ends the process, unless a script ends before enough is measured."""
    makers = steps_of_frameworks(request, finish)
    return run_providers(request, makers) if request.providers else run_steps(request, makers)


def steps_of_frameworks(request: RunRequest, finish: Callable[[Json], object]) -> Makers:
    """What makes the measured steps of each framework, or an estimate, by the name of its module."""
    if request.estimate:
        from stepscope.record.batch_size.fake_memory import Estimate
        from stepscope.record.batch_size.torch_steps import watch_optimizers

        return {"torch": lambda: watch_optimizers(Estimate(request, finish))}

    def torch_steps() -> Any:
        from stepscope.record.batch_size.torch_steps import TorchSteps, watch_optimizers

        return watch_optimizers(TorchSteps(request, finish))

    def jax_steps() -> Any:
        from stepscope.record.batch_size.jax_steps import JaxSteps

        return JaxSteps(request, finish)

    return {"torch": torch_steps, "jax": jax_steps}


def run_steps(request: RunRequest, makers: Makers) -> Json:
    """Run the script and report its steps to a watcher for each framework that it imports."""
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
        return {"outcome": "no_steps", "why": "; ".join(steps.why_no_steps for steps in watched)}
    return dict(steps.result())


def watch_imports(makers: Makers) -> list[Any]:
    """A list that gets what each maker makes, when the module of its name has been imported."""
    made: list[Any] = []
    for name, make in makers.items():
        AfterImport(name, lambda make=make: made.append(make())).install()  # type: ignore[misc]
    return made


def run_providers(request: RunRequest, makers: Makers) -> NoReturn:
    """Make iterations until enough is measured, which ends the process."""
    watched = watch_imports(makers)
    model, inputs, iterate = prepare(request)
    for steps in watched:
        steps.begin_iterations(model, inputs)
    iterate()
    training = [steps for steps in watched if steps.trains] or watched
    if not training:
        raise CaptureError(f"{request.entry} imports neither torch nor jax")
    while True:
        training[0].ended()
        iterate()


def prepare(request: RunRequest) -> tuple[Any, Any, Callable[[], object]]:
    """The model, its inputs, and a function that makes one iteration on them."""
    entry = load_entry(relocated(request.entry))
    model_of, inputs_of, iteration_of = (
        _provider(entry, f"{request.providers}_{name}_provider", request.entry)
        for name in ("model", "input", "iteration")
    )
    model = model_of()
    inputs = inputs_of(batch_size=request.batch)
    iteration = iteration_of(model)
    if isinstance(inputs, dict):
        return model, inputs, functools.partial(iteration, **inputs)
    arguments = inputs if isinstance(inputs, tuple | list) else (inputs,)
    return model, inputs, functools.partial(iteration, *arguments)


def load_entry(path: str) -> ModuleType:
    sys.path.insert(0, str(Path(path).resolve().parent))
    sys.argv = [path]
    module = ModuleType(_MODULE)
    module.__file__ = path
    sys.modules[_MODULE] = module
    with io.open_code(path) as source:
        code = compile(source.read(), original_path(path), "exec", dont_inherit=True)
    exec(code, module.__dict__)
    return module


def _provider(entry: ModuleType, name: str, path: str) -> Callable[..., Any]:
    provider = getattr(entry, name, None)
    if callable(provider):
        return provider
    raise CaptureError(
        f"{path} has no function {name}; it needs stepscope_model_provider(), "
        "stepscope_input_provider(batch_size=…) and stepscope_iteration_provider(model)"
    )
