"""The module calls of a level: the child of the opened module that contains each event."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.arrays import Ids
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
        inside = (modules["calls"] > 0) & (self.parent >= 0)
        self._called_inside = np.bincount(self.parent[inside], minlength=len(self.parent))

    def seen_from(self, context: int) -> Ids:
        """For each module, the child of `context` that it is or lies in, -1 for all others.

        Args:
            context: a module, or -1 for the roots' parent.

        Returns:
            int64, shape (modules + 1,); the last belongs to module -1.
        """
        found = np.full(self._above.shape[1] + 1, _NOWHERE, np.int64)
        for level in self._above:
            here = np.flatnonzero(level >= 0)
            here = here[self.parent[level[here]] == context]
            found[here] = level[here]
        return found

    def is_only_one_in(self, module: int, context: int) -> bool:
        """Whether `context` is a module that calls this one and no other."""
        inside = context >= 0 and module >= 0 and self.parent[module] == context
        return bool(inside and self._called_inside[context] == 1)

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
