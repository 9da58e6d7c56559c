"""SKYLINE's provider functions: a model, its inputs, and a function that makes one iteration.

Source: Yu et al., Skyline (UIST 2020), "Provider Functions".
"""

from __future__ import annotations

import functools
import io
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from stepscope.capture.batch_size.measured_script import steps_of_frameworks, watch_imports
from stepscope.capture.batch_size.request import Request
from stepscope.errors import CaptureError
from stepscope.scratch import original_path, relocated

Json = dict[str, Any]
_MODULE = "__stepscope_entry__"


def run_providers(request: Request, finish: Callable[[Json], NoReturn]) -> NoReturn:
    """Make iterations until enough is measured; `finish` ends the process.

    Raises:
        CaptureError: a provider function is missing, or an iteration trains nothing.
    """
    watched = watch_imports(steps_of_frameworks(request, finish))
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


def prepare(request: Request) -> tuple[Any, Any, Callable[[], object]]:
    """The model, its inputs, and a function that makes one iteration on them.

    Raises:
        CaptureError: a provider function is missing.
    """
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
    """The entry file as a module, its folder first among those that are imported from."""
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
    found = getattr(entry, name, None)
    if callable(found):
        return found  # type: ignore[no-any-return]
    raise CaptureError(
        f"{path} has no function {name}; it needs stepscope_model_provider(), "
        "stepscope_input_provider(batch_size=…) and stepscope_iteration_provider(model)"
    )
