"""Which modules' weights each optimizer updates, and which trained ones none does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepscope.capture.module_registry import ModuleRegistry

NOT_UPDATED = ""


def updated_modules(labels: Mapping[Any, str], registry: ModuleRegistry) -> dict[str, list[str]]:
    """The paths of modules by the name of the optimizer that holds parameters of their own.

    Args:
        labels: the name of each optimizer that stepped.
        registry: the model trees.

    Returns:
        With those that need gradients and that no optimizer holds, under `NOT_UPDATED`; empty
        where the optimizers hold no parameter of the models, as flat ones of FSDP.
    """
    held = {label: _held(optimizer) for optimizer, label in list(labels.items())}
    found: dict[str, list[str]] = {label: [] for label in (*held, NOT_UPDATED)}
    for node in (node for root in registry.roots for node in root.walk()):
        own = [one for one in node.module._parameters.values() if one is not None]
        names = [label for label, ids in held.items() if any(id(one) in ids for one in own)]
        if not names and any(one.requires_grad for one in own):
            names = [NOT_UPDATED]
        for name in names:
            found[name].append(node.path)
    return found if any(found[label] for label in held) else {}


def _held(optimizer: Any) -> set[int]:
    return {id(one) for group in optimizer.param_groups for one in group["params"]}
