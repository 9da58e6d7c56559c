"""How many samples each step takes from data loaders."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch.utils.data import dataloader

from stepscope.capture.batch_size.step_counts import StepCounts

_DEEPEST = 4


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
