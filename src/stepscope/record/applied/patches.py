"""Replace what a script calls: constructor arguments of a class, and calls of a model."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

Around = Callable[[Any, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


def with_arguments(cls: Any, arguments: Mapping[str, Any], seen: Callable[[Any], object]) -> None:
    """From now on instances of `cls` are constructed with `arguments`, in place of the script's own.

    Subclasses get them through their call of its constructor; `seen` gets each constructed instance.
    """
    import inspect

    original = cls.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        bound.arguments.update(arguments)
        original(*bound.args, **bound.kwargs)
        seen(self)

    cls.__init__ = construct


def around_outermost_calls(around: Around) -> None:
    """From now on `around(module, call, args, kwargs)` makes each outermost module call.

    A call is outermost if no other module's call is around it. While it runs, `nn.Module` is
    original: inner calls cost what they did, and torch.compile does not see us.
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
    """Whether a module has something to train: a loss or a transform is no model."""
    return any(parameter.requires_grad for parameter in module.parameters())


def device_of(module: Any, default: str) -> str:
    parameter = next(iter(module.parameters()), None)
    return default if parameter is None else str(parameter.device.type)
