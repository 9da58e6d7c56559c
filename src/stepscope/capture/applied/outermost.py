"""Steps in where the script calls a model: a call of a module that no other module's call is in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Around = Callable[[Any, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


def around_outermost_calls(around: Around) -> None:
    """From now on `around(module, call, args, kwargs)` makes each outermost module call.

    While it runs, `nn.Module` is as torch made it: inner calls cost what they did, and
    torch.compile sees nothing of us.
    """
    import torch

    module_class: Any = torch.nn.Module
    original = module_class.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        module_class.__call__ = original
        try:
            return around(self, original, args, kwargs)
        finally:
            module_class.__call__ = call

    module_class.__call__ = call


def is_model(module: Any) -> bool:
    """Whether there is something to train in a module: a loss or a transform is no model."""
    return any(parameter.requires_grad for parameter in module.parameters())


def device_of(module: Any, otherwise: str) -> str:
    """The type of the device that a module's parameters are on."""
    parameter = next(iter(module.parameters()), None)
    return otherwise if parameter is None else str(parameter.device.type)
