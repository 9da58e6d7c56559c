"""What hooks have to know of torch: where a backward pass runs, and how to avoid the compiler."""

import functools
import sys
from collections.abc import Callable
from itertools import chain
from types import CodeType, FunctionType
from typing import Any

import torch

from stepscope.record.patch import ignoring, replace

Function = Callable[..., Any]

# Where torch runs a backward pass: the function that hooks of backward wrap.
AUTOGRAD: Any = torch.autograd
# torch before 2.2 calls the engine itself.
ENGINE = "_engine_run_backward" if hasattr(AUTOGRAD, "_engine_run_backward") else "backward"


def wrap(
    holder: Any, name: str, around: Callable[[Function], Function], *others: Any
) -> list[Callable[[], None]]:
    """Replace a function of torch by one around it, which torch.compile skips; restored as by `replace`."""
    original = getattr(holder, name)
    ours = around(original)
    hide_from_compiler(ours.__code__)
    ours = functools.wraps(original)(ours)
    return [replace(each, name, ours) for each in (holder, *others)]


def is_captured() -> bool:
    """Whether calls are being recorded for later, as torch.jit.trace and CUDA graphs do.

    A profiler that starts or stops then would end the capture of a graph with an error.
    """
    jit: Any = torch.jit
    cuda: Any = torch.cuda
    capturing = cuda.is_initialized() and cuda.is_current_stream_capturing()
    return bool(jit.is_tracing() or capturing)


class CompilerPaused:
    """Inside a compiled model's first call, torch.compile would otherwise compile us as well."""

    def __enter__(self) -> None:
        self._callback = torch._C._dynamo.eval_frame.set_eval_frame(None)

    def __exit__(self, *exc: object) -> None:
        torch._C._dynamo.eval_frame.set_eval_frame(self._callback)


def compiler_takes(call: Callable[..., Any], instead_of: Callable[..., Any]) -> None:
    """Make torch.compile continue with a module's forward where it meets this `__call__`.

    It does so for the `nn.Module.__call__` that it saw when it was imported; any other it would
    compile as the user's.
    """
    module: Any = sys.modules.get("torch._dynamo.variables.nn_module")
    if getattr(module, "unpatched_nn_module_call", None) is instead_of:
        module.unpatched_nn_module_call = call


def hide_from_compiler(code: CodeType) -> None:
    """Make torch.compile skip a function of ours and continue with what it calls."""
    frames: Any = torch._C._dynamo.eval_frame
    if hasattr(frames, "skip_code"):
        frames.skip_code(code)
    else:
        skip, default = frames._FrameAction.SKIP, frames._FrameAction.DEFAULT
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, default))


def hide_methods(*classes: type) -> None:
    """The same of all methods of classes; a decorator may share its code with others."""
    for member in chain.from_iterable(vars(cls).values() for cls in classes):
        function = getattr(member, "fget", member)
        function = getattr(function, "__wrapped__", function)
        if isinstance(function, FunctionType):
            hide_from_compiler(function.__code__)


hide_methods(ignoring)
hide_from_compiler(CompilerPaused.__enter__.__code__)
hide_from_compiler(is_captured.__code__)
