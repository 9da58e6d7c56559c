"""The hot path of a tree, and its hotspots."""

from __future__ import annotations

import numpy as np

from stepscope.arrays import Ids
from stepscope.contexts.node_values import measure
from stepscope.contexts.tree import ContextTree


def hot_path(tree: ContextTree, by: str, start: int = 0, least: float = 0.5) -> list[int]:
    """The hot path by a measure: from each node to its largest child.

    Args:
        tree: any tree.
        by: a measure, as `measure` takes it.
        start: the first node of the path.
        least: continue while the child has at least this share of its parent.

    Returns:
        Node ids from `start` on.
    """
    value = measure(tree, by).inclusive
    path = [start]
    while len(children := tree.children(path[-1])):
        child = int(children[np.argmax(value[children])])
        if value[child] <= 0 or value[child] < least * value[path[-1]]:
            break
        path.append(child)
    return path


def hotspots(tree: ContextTree, by: str, least: float = 0.1) -> Ids:
    """The nodes whose own value is at least a share of the total, the largest first.

    Source: DEEPCONTEXT section 4.3, hotspot identification.
    """
    found = measure(tree, by)
    hot = np.flatnonzero((found.own > 0) & (found.own >= least * found.inclusive[0]))
    ranked: Ids = hot[np.argsort(-found.own[hot], kind="stable")]
    return ranked
