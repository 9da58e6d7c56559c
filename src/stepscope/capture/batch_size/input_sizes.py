"""The size of each step's model inputs, to distinguish long batches from short ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.modules import module as torch_module

from stepscope.capture.batch_size.step_counts import StepCounts

_DEEPEST = 4


class InputSizes:
    """Counts the elements of the tensors that the first model called in a step was given.

    The first step is watched by a hook of all modules, which only finds the model; later ones by a
    hook of that model alone.
    """

    def __init__(self, counts: StepCounts) -> None:
        self._counts = counts
        self._hook = torch_module.register_module_forward_pre_hook(self._first_call)

    def close(self) -> None:
        """Remove the hook."""
        self._hook.remove()

    def _first_call(self, module: Any, args: Any) -> None:
        self._hook.remove()
        self._hook = module.register_forward_pre_hook(self._called, with_kwargs=True)

    def _called(self, module: Any, args: Any, kwargs: Any) -> None:
        self._counts.add_inputs(elements(args) + elements(kwargs.values()))


def elements(values: Iterable[Any], depth: int = 0) -> int:
    """Elements of all tensors among `values`, lists and dicts included."""
    total = 0
    for value in values:
        if isinstance(value, torch.Tensor):
            total += value.numel()
        elif depth < _DEEPEST and isinstance(value, list | tuple):
            total += elements(value, depth + 1)
        elif depth < _DEEPEST and hasattr(value, "values") and callable(value.values):
            total += elements(value.values(), depth + 1)
    return total
