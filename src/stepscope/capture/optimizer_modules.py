"""Which optimizers step in the recorded steps, and which modules each of them updates."""

from __future__ import annotations

from typing import Any

from stepscope.capture.model_tree import Node
from stepscope.capture.module_registry import ModuleRegistry

_MOST_STEPS = 10_000


class OptimizerModules:
    """Notes the optimizers that step, in order."""

    def __init__(self) -> None:
        self._optimizers: dict[int, Any] = {}
        self._order: list[int] = []

    def stepped(self, optimizer: Any) -> None:
        """An optimizer has stepped while steps are recorded."""
        if len(self._order) < _MOST_STEPS and hasattr(optimizer, "param_groups"):
            self._optimizers.setdefault(id(optimizer), optimizer)
            self._order.append(id(optimizer))

    def describe(self, registry: ModuleRegistry) -> dict[str, Any] | None:
        """Paths of modules by optimizer, and the optimizer of each step; None if none stepped.

        An optimizer updates the smallest modules that have all of its parameters, one in each
        model.
        """
        if not self._order:
            return None
        owners: dict[int, Node] = {}
        for root in registry.roots:
            for node in root.walk():
                for parameter in node.module._parameters.values():
                    owners.setdefault(id(parameter), node)
        position = {key: place for place, key in enumerate(self._optimizers)}
        return {
            "modules": [_modules(found, owners) for found in self._optimizers.values()],
            "steps": [position[key] for key in self._order],
        }


def _modules(optimizer: Any, owners: dict[int, Node]) -> list[str]:
    """The path of the smallest module with all parameters of an optimizer, for each model."""
    smallest: dict[int, Node] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if (node := owners.get(id(parameter))) is not None:
                root = _root(node)
                smallest[id(root)] = _common(smallest.get(id(root), node), node)
    return [node.path for node in smallest.values()]


def _root(node: Node) -> Node:
    while node.parent is not None:
        node = node.parent
    return node


def _common(one: Node, other: Node) -> Node:
    """The innermost module that has both inside."""
    while not other.is_below(one) and one.parent is not None:
        one = one.parent
    return one
