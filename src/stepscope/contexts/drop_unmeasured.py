"""A tree without subtrees that have no samples."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stepscope.arrays import Mask
from stepscope.contexts.tree import ContextTree


def without_unused(tree: ContextTree) -> ContextTree:
    """The tree without subtrees that have no samples; the root stays."""
    used = np.zeros(len(tree), np.bool_)
    for own in tree.metrics.values():
        used |= own.count > 0
    return keep_nodes(tree, used)


def keep_nodes(tree: ContextTree, wanted: Mask) -> ContextTree:
    """The tree of the wanted nodes and their ancestors; samples of other nodes are dropped.

    Args:
        tree: any tree.
        wanted: bool, shape (nodes,).
    """
    before = np.concatenate([[0], np.cumsum(wanted)])
    keep = before[tree.end] > before[:-1]
    keep[0] = True
    if keep.all():
        return tree
    number = np.append(np.cumsum(keep) - 1, -1)
    number[:-1][~keep] = -1
    rows = np.flatnonzero(keep)
    nodes = tree.nodes.take(rows)
    return replace(
        tree,
        nodes=nodes.with_columns(parent=number[nodes["parent"]]),
        metrics={name: own.take(rows) for name, own in tree.metrics.items()},
        event_node=None if tree.event_node is None else number[tree.event_node],
    )
