"""Two trees laid over each other."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stepscope.contexts.fold import fold, identity, stacked_nodes
from stepscope.contexts.measure import measure
from stepscope.contexts.stats import Stats
from stepscope.contexts.tree import ContextTree
from stepscope.trace.table import Table

# Lines move when code is edited, folders from machine to machine.
_SAME_PLACE = ("kind", "via", "name", "file")


@dataclass(frozen=True)
class Difference:
    """Two trees with one table of nodes: row i of both is one path.

    Attributes:
        before, after: the trees; a path that only one of them has is without samples in the other.
    """

    before: ContextTree
    after: ContextTree

    def change(self, by: str) -> NDArray[np.float64]:
        """After less before, of a measure, at and below each node; shape (nodes,)."""
        after, before = (measure(tree, by).inclusive for tree in (self.after, self.before))
        change: NDArray[np.float64] = after - before
        return change


def difference(before: ContextTree, after: ContextTree) -> Difference:
    """Align two trees by path; Python frames by function and file name, whatever their line."""
    rows = stacked_nodes([before, after])
    folded = fold(rows, key=identity(_without_folders(rows), _SAME_PLACE))
    names = dict.fromkeys([*before.metrics, *after.metrics])
    laid = []
    for tree, place in (
        (before, folded.place[: len(before)]),
        (after, folded.place[len(before) :]),
    ):
        size = len(folded.nodes)
        metrics = {
            name: (tree.metrics.get(name) or Stats.empty(len(tree))).grouped(place, size)
            for name in names
        }
        laid.append(replace(tree, nodes=folded.nodes, metrics=metrics, event_node=None))
    return Difference(*laid)


def _without_folders(rows: Table) -> Table:
    names = rows.text("file").map(lambda file: file.replace("\\", "/").rpartition("/")[2])
    return rows.with_columns(file=names)
