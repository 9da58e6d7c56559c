"""Two trees aligned by path."""

from __future__ import annotations

from dataclasses import dataclass, replace

from stepscope.arrays import Floats
from stepscope.contexts.combine_rows import fold, identity, stacked_nodes
from stepscope.contexts.node_values import measure
from stepscope.contexts.sample_stats import SampleStats
from stepscope.contexts.tree import ContextTree
from stepscope.trace.table import Table

# Lines move when code is edited, folders from machine to machine.
_SAME_PLACE = ("kind", "via", "name", "file")


@dataclass(frozen=True)
class TreeDifference:
    """Two trees with a common table of nodes: row i is the same path in both.

    Attributes:
        before, after: the trees; a path that exists in only one has no samples in the other.
    """

    before: ContextTree
    after: ContextTree

    def change(self, by: str) -> Floats:
        """The change of a measure's inclusive value (after minus before), shape (nodes,)."""
        after, before = (measure(tree, by).inclusive for tree in (self.after, self.before))
        change: Floats = after - before
        return change


def difference(before: ContextTree, after: ContextTree) -> TreeDifference:
    """Align two trees by path; Python frames by function and file name, not by line."""
    rows = stacked_nodes([before, after])
    folded = fold(rows, key=identity(_without_folders(rows), _SAME_PLACE))
    names = dict.fromkeys([*before.metrics, *after.metrics])
    aligned = []
    for tree, place in (
        (before, folded.place[: len(before)]),
        (after, folded.place[len(before) :]),
    ):
        size = len(folded.nodes)
        metrics = {
            name: (tree.metrics.get(name) or SampleStats.empty(len(tree))).grouped(place, size)
            for name in names
        }
        aligned.append(replace(tree, nodes=folded.nodes, metrics=metrics, event_node=None))
    return TreeDifference(*aligned)


def _without_folders(rows: Table) -> Table:
    names = rows.text("file").map(lambda file: file.replace("\\", "/").rpartition("/")[2])
    return rows.with_columns(file=names)
