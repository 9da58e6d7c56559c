"""What each step of a PyTorch program takes in: elements of its inputs, and samples."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.modules import module as torch_module
from torch.utils.data import dataloader

from stepscope.record.batch_size.measured_steps import StepCounts

_DEEPEST = 6  # batches nest a few lists and dicts; a deeper value is none


class InputSizes:
    """Counts the elements of the tensors that the first model called in a step was given.

    The first step is watched by a hook of all modules, which only finds the model; later ones by a
    hook of that model alone.
    """

    def __init__(self, counts: StepCounts) -> None:
        self._counts = counts
        self._hook = torch_module.register_module_forward_pre_hook(self._first_call)

    def _first_call(self, module: Any, args: Any) -> None:
        self._hook.remove()
        self._hook = module.register_forward_pre_hook(self._called, with_kwargs=True)

    def _called(self, module: Any, args: Any, kwargs: Any) -> None:
        self._counts.add_inputs(sum(tensor.numel() for tensor in tensors_in((args, kwargs))))


def tensors_in(value: Any, depth: int = 0) -> Iterator[Any]:
    """The tensors in a value, lists and dicts included, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < _DEEPEST:
        if hasattr(value, "values") and callable(value.values):
            value = list(value.values())
        for part in value if isinstance(value, list | tuple) else ():
            yield from tensors_in(part, depth + 1)


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
            indices = next_index(iterator)
            if isinstance(indices, list | tuple):  # else the data set makes the batches itself
                self._indices.setdefault(id(iterator), deque()).append(len(indices))
            return indices

        def batch(iterator: Any) -> Any:
            samples = next_batch(iterator)
            waiting = self._indices.get(id(iterator))
            sizes = (len(tensor) for tensor in tensors_in(samples) if tensor.dim() and len(tensor))
            count = waiting.popleft() if waiting else next(sizes, 0)
            if torch.is_grad_enabled():
                self._counts.add_samples(count)
            return samples

        loader._next_index, loader.__next__ = index, batch
