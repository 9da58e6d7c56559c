"""Where it is hot: the path to follow, and the places that take most themselves."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.contexts.measure import measure
from stepscope.contexts.tree import ContextTree


def hot_path(tree: ContextTree, by: str, start: int = 0, least: float = 0.5) -> list[int]:
    """The path that most of a measure is on: from each node to its largest child.

    Args:
        tree: any.
        by: a measure, as `measure` takes it.
        start: the node to begin with.
        least: go on while the child has at least this share of its parent.

    Returns:
        Node ids from `start` on.
    """
    value = measure(tree, by).inclusive
    path = [start]
    while len(below := tree.children(path[-1])):
        child = int(below[np.argmax(value[below])])
        if value[child] <= 0 or value[child] < least * value[path[-1]]:
            break
        path.append(child)
    return path


def hotspots(tree: ContextTree, by: str, least: float = 0.1) -> NDArray[np.int64]:
    """The nodes that have at least a share of the whole themselves, the largest first.

    Source: DEEPCONTEXT section 4.3, hotspot identification.
    """
    found = measure(tree, by)
    hot = np.flatnonzero((found.own > 0) & (found.own >= least * found.inclusive[0]))
    ranked: NDArray[np.int64] = hot[np.argsort(-found.own[hot], kind="stable")]
    return ranked
