"""The module calls of a level: the child of the opened module that contains each event."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.arrays import Ids, Mask
from stepscope.trace.table import Table

_NOWHERE = -1


class ModuleTree:
    """The modules that are called, as a tree; containers that never are (`ModuleList`) left out.

    Args:
        modules: the table of modules.
    """

    def __init__(self, modules: Table) -> None:
        self.paths = [path or "" for path in modules.text("path")]
        self.names = [name or "" for name in modules.text("name")]
        self.classes = [name or "" for name in modules.text("class")]
        self.parent = _called_parents(modules["parent"].tolist(), modules["calls"].tolist())
        self._above = _ancestors(self.parent)
        self._depth = np.append((self._above >= 0).sum(axis=0) - 1, -1)
        inside = (modules["calls"] > 0) & (self.parent >= 0)
        self._called_inside = np.bincount(self.parent[inside], minlength=len(self.parent))

    def seen_from(self, context: Ids, module: Ids) -> Ids:
        """The child of each `context` that a `module` is or lies in, -1 where there is none.

        Args:
            context: modules, or -1 for the roots' parent, shape (n,).
            module: modules, or -1, shape (n,).
        """
        if not len(self.parent):
            return np.full(len(module), _NOWHERE, np.int64)
        above = self._depth[module] - self._depth[context] - 1
        found = self._above[np.maximum(above, 0), module]
        return np.where((above >= 0) & (module >= 0) & (self.parent[found] == context), found, -1)

    def is_only_one_in(self, module: Ids, context: Ids) -> Mask:
        """Whether each `context` is a module that calls this `module` and no other."""
        if not len(self.parent):
            return np.zeros(len(module), np.bool_)
        inside = (context >= 0) & (module >= 0) & (self.parent[module] == context)
        only: Mask = inside & (self._called_inside[context] == 1)
        return only

    def name_in(self, module: int, context: int) -> str:
        """A module's path from `context` on, or its class where it has no name."""
        path, around = self.paths[module], self.paths[context] if context >= 0 else ""
        inner = path[len(around) + 1 :] if around and path.startswith(f"{around}.") else path
        return inner or self.classes[module] or "model"


def _called_parents(parent: list[int], calls: list[int]) -> Ids:
    result = np.array(parent, np.int64)
    for module, above in enumerate(parent):
        if above >= 0 and not calls[above]:
            result[module] = result[above]  # parents come first, so this one is settled
    return result


def _ancestors(parent: Ids) -> NDArray[np.int64]:
    """Each module, its parent, its parent's parent …, -1 beyond the root, (depths, modules)."""
    levels = [np.arange(len(parent))]
    while (levels[-1] >= 0).any():
        levels.append(np.where(levels[-1] >= 0, parent[levels[-1]], -1))
    return np.array(levels)
