"""The bottom-up view of a tree: each place with its samples over all paths, split by callers.

Source: DEEPCONTEXT section 4.4: the bottom-up view aggregates metrics at the same node across
different call paths.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stepscope.arrays import Ids
from stepscope.contexts.call_paths import distinct, preorder
from stepscope.contexts.combine_rows import identity
from stepscope.contexts.metrics import METRICS
from stepscope.contexts.sample_stats import SampleStats
from stepscope.contexts.tree import ContextTree
from stepscope.trace.schema import VIAS
from stepscope.trace.table import Text

_SAME_PLACE = ("kind", "name", "file", "line")


def bottom_up(tree: ContextTree, *metrics: str) -> ContextTree:
    """Invert a tree: the root's children are the measured places, and below each are its callers.

    A node's inclusive statistics cover the samples at the first place of its path that were
    reached through the other places on the path.

    Args:
        tree: a top-down tree.
        metrics: metrics to keep; by default all.

    Returns:
        The inverted tree, with the same sums.

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
        # The calls at a place add up over its callers.
        known={**tree.known, "call_ns": replace(METRICS["call_ns"], additive=True)},
        source=tree.source,
        notes=tree.notes,
    )


def _inverted(tree: ContextTree, source: Ids) -> tuple[Ids, Ids, Ids]:
    """Inverted nodes by level: their parents, a tree row for each, and each source's last node."""
    key = identity(tree.nodes, _SAME_PLACE)
    span = int(key.max(initial=0)) + 1
    parents, rows, size = [np.array([-1])], [np.array([0])], 1
    last = np.zeros(len(source), np.int64)
    at, waiting = source.copy(), np.flatnonzero(source > 0)
    while len(waiting):
        path, number, first = distinct(last[waiting] * span + key[at[waiting]])
        parents.append(path // span)
        rows.append(at[waiting][first])
        last[waiting] = size + number
        size += len(path)
        at[waiting] = tree.parent[at[waiting]]
        waiting = waiting[at[waiting] > 0]
    return np.concatenate(parents), np.concatenate(rows), last


def _grouped(own: SampleStats, source: Ids, node: Ids, size: int) -> SampleStats:
    return own.take(source).grouped(node, size)
