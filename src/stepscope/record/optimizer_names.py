"""Names optimizers as the user names them, numbers them, and lists the modules that each updates.

torch names the range of a step by the class alone, which is the same for both optimizers of a GAN.
"""

import sys
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from stepscope.record.call_sites import is_library, user_frames, variables
from stepscope.record.module_registry import ModuleRegistry
from stepscope.record.ranges import Range

OPTIMIZER_RANGE = "stepscope.optimizer: "
_DEEPEST = 40  # frames that are searched
_LARGEST = 100  # a container in which an optimizer is searched
_WRAPS = ("optimizer", "_optimizer")  # as accelerate and Lightning hold the optimizer they wrap


class OptimizerNames:
    """The name of each optimizer: that of a variable that holds it, else its class.

    A variable that holds two of them in turn, as in a loop over optimizers or in a function that
    steps any, names neither. Among others that of the outermost caller counts, and of one caller's
    the longest, which says most.
    """

    def __init__(self) -> None:
        self._names: weakref.WeakKeyDictionary[Any, list[str]] = weakref.WeakKeyDictionary()
        self._labels: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._stepped = 0

    def range_of(self, optimizer: Any) -> Any:
        """The range of a step of this optimizer, a context manager."""
        if optimizer not in self._labels:
            self._names[optimizer] = list(_names(optimizer))
            self._stepped += 1
            self._name_all()
        return Range(self._labels[optimizer])

    def by_optimizer(self) -> dict[Any, str]:
        """The name of each optimizer that stepped; empty if one, as of a task, no longer lives."""
        labels = {optimizer: label[len(OPTIMIZER_RANGE) :] for optimizer, label in list(self._labels.items())}
        return labels if len(labels) == self._stepped else {}

    def _name_all(self) -> None:
        """Name every optimizer again: one more may show that a name is shared."""
        held = Counter(name for names in self._names.values() for name in set(names))
        seen: Counter[str] = Counter()
        for optimizer, names in list(self._names.items()):
            own = next((name for name in names if held[name] == 1), type(optimizer).__name__)
            seen[own] += 1
            label = own if seen[own] == 1 else f"{own}_{seen[own]}"
            self._labels[optimizer] = OPTIMIZER_RANGE + label


def _names(optimizer: Any) -> Iterator[str]:
    """The variables that hold the optimizer, the best name first."""
    callers: list[list[str]] = []
    for frame in user_frames(sys._getframe(1), _DEEPEST):
        if not is_library(frame.f_code.co_filename):
            names = [name for pair in variables(frame) for name in _places(*pair, optimizer)]
            callers.append(sorted(names, key=lambda name: ("." in name, -len(name))))
    return chain.from_iterable(reversed(callers))


def _places(name: str, held: Any, optimizer: Any) -> Iterator[str]:
    """Where a variable holds the optimizer: itself, in a wrapper, or in a container."""
    if _is_or_wraps(held, optimizer):
        yield name
    elif isinstance(held, (dict, list, tuple)) and len(held) <= _LARGEST:
        parts = held.items() if isinstance(held, dict) else enumerate(held)
        yield from (f"{name}.{key}" for key, part in parts if _is_or_wraps(part, optimizer))


def _is_or_wraps(held: Any, optimizer: Any) -> bool:
    if held is optimizer:
        return True
    attributes = getattr(type(held), "__dict__", None) and getattr(held, "__dict__", None)
    if type(attributes) is not dict:
        return False
    return any(attributes.get(name) is optimizer for name in _WRAPS)


class OptimizerOrder:
    """Numbers optimizers from 1 in the order of their first steps.

    An id alone is not enough: a sweep creates its next optimizer where the last one was.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}
        self.last = 0  # the highest number so far

    def number(self, optimizer: Any) -> int:
        numbered = self._known.get(id(optimizer))
        if numbered is None or numbered[0]() is not optimizer:
            self.last += 1
            numbered = self._known[id(optimizer)] = weakref.ref(optimizer), self.last
        return numbered[1]

    def living(self) -> list[Any]:
        return [optimizer for held, _ in self._known.values() if (optimizer := held()) is not None]


NOT_UPDATED = ""


def updated_modules(labels: Mapping[Any, str], registry: ModuleRegistry) -> dict[str, list[str]]:
    """The paths of modules by the name of the optimizer that holds parameters of their own.

    Returns:
        With those that need gradients and that no optimizer holds, under `NOT_UPDATED`; empty
        where the optimizers hold no parameter of the models, as flat ones of FSDP.
    """
    groups = [(label, optimizer.param_groups) for optimizer, label in list(labels.items())]
    held = {label: {id(tensor) for group in of for tensor in group["params"]} for label, of in groups}
    updated: dict[str, list[str]] = {label: [] for label in (*held, NOT_UPDATED)}
    for node in registry.nodes():
        own = [parameter for parameter in node.module._parameters.values() if parameter is not None]
        names = [label for label, ids in held.items() if any(id(parameter) in ids for parameter in own)]
        if not names and any(parameter.requires_grad for parameter in own):
            names = [NOT_UPDATED]
        for name in names:
            updated[name].append(node.path)
    return updated if any(updated[label] for label in held) else {}
