"""What each step of a PyTorch program takes in: elements of its inputs, and samples."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.modules import module as torch_module
from torch.utils.data import dataloader

from stepscope.capture.batch_size.measured_steps import StepCounts

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


class LoadedSamples:
    """Counts the samples that data loaders hand out while gradients are enabled.

    A loader's batch counts with the number of its indices, so gradient accumulation, a batch size
    divided among devices and a short last batch all count as they are.
    """

    def __init__(self, counts: StepCounts) -> None:
        self._counts = counts
        self._indices: dict[int, deque[int]] = {}
        self._watch(dataloader._BaseDataLoaderIter)

    def _watch(self, loader: Any) -> None:
        next_index, next_batch = loader._next_index, loader.__next__

        def index(iterator: Any) -> Any:
            found = next_index(iterator)
            if isinstance(found, list | tuple):  # else the data set makes the batches itself
                self._indices.setdefault(id(iterator), deque()).append(len(found))
            return found

        def batch(iterator: Any) -> Any:
            found = next_batch(iterator)
            waiting = self._indices.get(id(iterator))
            count = waiting.popleft() if waiting else leading_size(found)
            if torch.is_grad_enabled():
                self._counts.add_samples(count)
            return found

        loader._next_index, loader.__next__ = index, batch


def leading_size(value: Any, depth: int = 0) -> int:
    """The first dimension of the first tensor in a batch; 0 if there is none."""
    if isinstance(value, torch.Tensor):
        return int(value.shape[0]) if value.dim() else 0
    if depth < _DEEPEST and hasattr(value, "values") and callable(value.values):
        value = list(value.values())
    if depth < _DEEPEST and isinstance(value, list | tuple):
        return next((size for one in value if (size := leading_size(one, depth + 1))), 0)
    return 0
