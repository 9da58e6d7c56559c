"""Rows of trees put together: the one operation behind merging, pruning, hiding and comparing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from stepscope.contexts.paths import merge_paths
from stepscope.contexts.stats import Stats
from stepscope.contexts.tree import ContextTree
from stepscope.trace.stack import stacked
from stepscope.trace.table import Table, Text

Ids = NDArray[np.int64]
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

    def metrics(self, rows: Mapping[str, Stats]) -> dict[str, Stats]:
        """The statistics of rows as those of the nodes they went to."""
        return {name: own.grouped(self.place, len(self.nodes)) for name, own in rows.items()}


def fold(rows: Table, into: NDArray[np.integer] | None = None, key: Ids | None = None) -> Folded:
    """Merge rows of trees that stand for one path.

    Args:
        rows: of one or more trees, `parent` counting over all of them; roots are one node.
        into: the row that each row is to be part of, itself by default; integer, shape (rows,).
        key: what tells rows apart beside their path, by default `IDENTITY`; int64, shape (rows,).

    Returns:
        The merged nodes. Facts that differ among the rows of a node become null.
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
    """The nodes of several trees one after the other."""
    sizes = accumulate((len(tree) for tree in trees[:-1]), initial=0)
    return stacked([tree.nodes for tree in trees], [{"contexts": size} for size in sizes])


def _agreed(column: Text, rows: Ids, node: Ids, size: int) -> Text:
    """The value that all rows of a node have, null where they differ."""
    codes = column.codes[rows].astype(np.int32)
    low, high = np.full(size, np.iinfo(np.int32).max, np.int32), np.full(size, -1, np.int32)
    np.minimum.at(low, node, codes)
    np.maximum.at(high, node, codes)
    return Text(np.where(low == high, high, -1).astype(np.int32), column.values)
