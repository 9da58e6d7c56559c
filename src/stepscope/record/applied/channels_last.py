"""`channels_last`: the model's filters and its images in the layout `torch.channels_last`."""

from typing import Any

from stepscope.record.applied.patches import around_outermost_calls, is_model

_IMAGES = 4  # dimensions of images and of their filters


class Apply:
    """Filters change before a model's first call; images that are its arguments before each call."""

    def __init__(self) -> None:
        self._models: set[int] = set()
        self._images = 0
        around_outermost_calls(self._call)

    def evidence(self) -> dict[str, Any]:
        return {"count": self._images, "models": len(self._models)}

    def _call(self, module: Any, call: Any, args: Any, kwargs: Any) -> Any:
        if not is_model(module):
            return call(module, *args, **kwargs)
        if id(module) not in self._models and _lay_out(module):
            self._models.add(id(module))
        args = [self._laid_out(value) for value in args]
        kwargs = {name: self._laid_out(value) for name, value in kwargs.items()}
        return call(module, *args, **kwargs)

    def _laid_out(self, value: Any) -> Any:
        import torch

        if not isinstance(value, torch.Tensor) or value.dim() != _IMAGES:
            return value
        self._images += 1
        return value.contiguous(memory_format=torch.channels_last)


def _lay_out(module: Any) -> bool:
    """Change the layout of all filters; False if some have no size before a call."""
    import torch

    parameters = list(module.parameters())
    sized = [one for one in parameters if not torch.nn.parameter.is_lazy(one)]
    for parameter in sized:
        if parameter.dim() == _IMAGES:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return len(sized) == len(parameters)
