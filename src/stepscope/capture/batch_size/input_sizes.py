"""The size of each step's model inputs, to distinguish long batches from short ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.modules import module as torch_module

_DEEPEST = 4
_ALIKE = 0.95


class InputSizes:
    """Elements of the tensors that the first model called in a step was given, step by step.

    The first step is watched by a hook of all modules, which only finds the model; later ones by a
    hook of that model alone.
    """

    def __init__(self) -> None:
        self.steps: list[int | None] = []
        self._now: int | None = None
        self._hook = torch_module.register_module_forward_pre_hook(self._first_call)

    def forget(self) -> None:
        """What came before does not count: the first steps may have been misdetected."""
        self.steps.clear()

    def end_step(self) -> None:
        """A step ends here."""
        self.steps.append(self._now)
        self._now = None

    @property
    def range(self) -> tuple[int, int]:
        """The least and the most, of the steps known."""
        known = [size for size in self.steps if size is not None]
        return min(known, default=0), max(known, default=0)

    @property
    def varied(self) -> bool:
        """Whether some steps were clearly shorter than others."""
        least, most = self.range
        return least < _ALIKE * most

    def is_long(self, size: int | None) -> bool:
        """Whether a step of this size is among the longest, as far as is known."""
        return size is None or size >= _ALIKE * self.range[1]

    def close(self) -> None:
        """Remove the hook."""
        self._hook.remove()

    def _first_call(self, module: Any, args: Any) -> None:
        self._hook.remove()
        self._hook = module.register_forward_pre_hook(self._called, with_kwargs=True)

    def _called(self, module: Any, args: Any, kwargs: Any) -> None:
        self._now = (self._now or 0) + elements(args) + elements(kwargs.values())


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
