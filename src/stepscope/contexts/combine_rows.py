"""Rows of trees combined: the common operation of merging, pruning, hiding and comparing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from stepscope.arrays import Ids, IntArray
from stepscope.contexts.call_paths import merge_paths
from stepscope.contexts.sample_stats import SampleStats
from stepscope.contexts.tree import ContextTree
from stepscope.trace.concat import stacked
from stepscope.trace.table import Table, Text

IDENTITY = ("kind", "via", "name", "file", "line")
_FACTS = ("stage", "module", "work")


@dataclass(frozen=True)
class Folded:
    """Merged nodes.

    Attributes:
        nodes: table of nodes, in preorder.
        place: the node that each row went to, int64, shape (rows,).
    """

    nodes: Table
    place: Ids

    def metrics(self, rows: Mapping[str, SampleStats]) -> dict[str, SampleStats]:
        """The statistics of the rows, summed up per merged node."""
        return {name: own.grouped(self.place, len(self.nodes)) for name, own in rows.items()}


def fold(rows: Table, into: IntArray | None = None, key: Ids | None = None) -> Folded:
    """Merge rows with the same path.

    Args:
        rows: of one or more trees, `parent` numbered across all of them; the roots are merged.
        into: the row that absorbs each row, by default itself; integer, shape (rows,).
        key: distinguishes rows with the same parent, by default `IDENTITY`; int64, shape (rows,).

    Returns:
        The merged nodes. Facts on which the rows of a node disagree become null.
    """
    target = np.arange(len(rows)) if into is None else np.asarray(into, np.int64)
    kept = np.flatnonzero(target == np.arange(len(rows)))
    number = np.full(len(rows) + 1, -1, np.int64)
    number[kept] = np.arange(len(kept))
    above = rows["parent"][kept].astype(np.int64)
    parent = np.where(above >= 0, number[target[above]], -1)
    paths = merge_paths(parent, (identity(rows) if key is None else key)[kept])
    _, first = np.unique(paths.node, return_index=True)
    nodes = rows.take(kept[first]).with_columns(parent=paths.parent)
    facts = {name: _agreed(rows.text(name), kept, paths.node, len(nodes)) for name in _FACTS}
    return Folded(nodes.with_columns(**facts), paths.node[number[target]])


def identity(rows: Table, columns: Sequence[str] = IDENTITY) -> Ids:
    """One number for each distinct combination of some columns, int64, shape (rows,)."""
    code = np.zeros(len(rows), np.int64)
    for name in columns:
        _, number = np.unique(rows[name], return_inverse=True)
        _, code = np.unique(code * (int(number.max(initial=0)) + 1) + number, return_inverse=True)
    return code.astype(np.int64)


def stacked_nodes(trees: Sequence[ContextTree]) -> Table:
    """The nodes of several trees, concatenated."""
    sizes = accumulate((len(tree) for tree in trees[:-1]), initial=0)
    return stacked([tree.nodes for tree in trees], [{"contexts": size} for size in sizes])


def _agreed(column: Text, rows: Ids, node: Ids, size: int) -> Text:
    """The value that all rows of a node share, null where they differ."""
    codes = column.codes[rows].astype(np.int32)
    low, high = np.full(size, np.iinfo(np.int32).max, np.int32), np.full(size, -1, np.int32)
    np.minimum.at(low, node, codes)
    np.maximum.at(high, node, codes)
    return Text(np.where(low == high, high, -1).astype(np.int32), column.values)
