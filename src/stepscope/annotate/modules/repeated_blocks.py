"""Detect numbered copies of one block: the layers of a model."""

from __future__ import annotations

import numpy as np

from stepscope.arrays import Ids
from stepscope.trace.table import Table


def numbered_blocks(modules: Table) -> Ids:
    """A code shared by the copies of one block, -1 for all other modules.

    A block has children and is named by a number (`h.3`) or by its class and a number
    (`Bottleneck_3`). Copies have the same class and size, and so do their children, in order.

    Args:
        modules: the table of modules, parents before children.

    Returns:
        int64, shape (modules,).
    """
    parent = modules["parent"].tolist()
    inside: list[list[int]] = [[] for _ in parent]
    shape = [0] * len(parent)
    codes: dict[object, int] = {}
    looks = list(zip(modules.text("class"), modules["parameters"].tolist(), strict=True))
    for module in range(len(parent) - 1, -1, -1):
        key = (looks[module], tuple(reversed(inside[module])))
        shape[module] = codes.setdefault(key, len(codes))
        if parent[module] >= 0:
            inside[parent[module]].append(shape[module])
    named = zip(modules.text("name"), modules.text("class"), strict=True)
    numbered = [_is_numbered(name or "", kind or "") for name, kind in named]
    block = np.array(numbered, bool) & np.array([bool(children) for children in inside], bool)
    return np.where(block, np.array(shape, np.int64), -1)


def _is_numbered(name: str, kind: str) -> bool:
    return name.removeprefix(f"{kind}_").isdigit()
