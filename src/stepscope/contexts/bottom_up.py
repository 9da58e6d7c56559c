"""The tree upside down: each place with what was measured at it, over all paths, by its callers.

Source: DEEPCONTEXT section 4.4: the bottom-up view aggregates metrics at the same node across
different call paths.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stepscope.contexts.fold import identity
from stepscope.contexts.metrics import METRICS
from stepscope.contexts.paths import distinct, preorder
from stepscope.contexts.stats import Stats
from stepscope.contexts.tree import ContextTree
from stepscope.trace.schema import VIAS
from stepscope.trace.table import Text

Ids = NDArray[np.int64]
_SAME_PLACE = ("kind", "name", "file", "line")


def bottom_up(tree: ContextTree, *metrics: str) -> ContextTree:
    """Invert a tree: below the root each place that was measured, below each its callers.

    A node's inclusive statistics are those of the samples taken at the place at the top of its
    path, as called through the others on it.

    Args:
        tree: as built; node 0 is its root.
        metrics: only these; by default all.

    Returns:
        A tree of other shape with the same sums.

    Raises:
        TraceError: if the tree lacks one of the metrics.
    """
    kept = {name: tree.own(name) for name in metrics or tree.metrics}
    measured = np.zeros(len(tree), np.bool_)
    for own in kept.values():
        measured |= own.count > 0
    source = np.flatnonzero(measured)
    parent, row, last = _inverted(tree, source)
    place = preorder(parent)
    order = np.argsort(place, kind="stable")
    above = parent[order]
    nodes = tree.nodes.take(row[order]).with_columns(
        parent=np.where(above >= 0, place[above], -1), via=Text.constant(VIAS[0], len(order))
    )
    return ContextTree(
        nodes=nodes,
        metrics={
            name: _grouped(own, source, place[last], len(order)) for name, own in kept.items()
        },
        # The calls of a place add up over its callers.
        known={**tree.known, "call_ns": replace(METRICS["call_ns"], additive=True)},
        source=tree.source,
        notes=tree.notes,
    )


def _inverted(tree: ContextTree, source: Ids) -> tuple[Ids, Ids, Ids]:
    """Inverted nodes, level by level: their parents, a row each stands for, each source's last."""
    key = identity(tree.nodes, _SAME_PLACE)
    span = int(key.max(initial=0)) + 1
    parents, rows, made = [np.array([-1])], [np.array([0])], 1
    last = np.zeros(len(source), np.int64)
    at, waiting = source.copy(), np.flatnonzero(source > 0)
    while len(waiting):
        path, number, first = distinct(last[waiting] * span + key[at[waiting]])
        parents.append(path // span)
        rows.append(at[waiting][first])
        last[waiting] = made + number
        made += len(path)
        at[waiting] = tree.parent[at[waiting]]
        waiting = waiting[at[waiting] > 0]
    return np.concatenate(parents), np.concatenate(rows), last


def _grouped(own: Stats, source: Ids, node: Ids, size: int) -> Stats:
    return own.take(source).grouped(node, size)
