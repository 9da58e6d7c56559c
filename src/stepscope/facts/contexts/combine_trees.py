"""Trees made of other trees: merged, aligned for a comparison, or turned bottom-up."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from msgspec import structs

from stepscope.base.arrays import Ids, IntArray
from stepscope.facts.contexts.call_paths import agreed, distinct, merge_paths, preorder
from stepscope.facts.contexts.metrics import METRICS, SampleStats
from stepscope.facts.contexts.tree import ContextTree
from stepscope.trace.concat import stacked
from stepscope.trace.schema import VIAS
from stepscope.trace.sets import distinct_rows
from stepscope.trace.table import Table, Text

IDENTITY = ("kind", "via", "name", "file", "line")
_FACTS = ("stage", "module", "work")
# Lines move when code is edited, folders from machine to machine.
_SAME_PLACE = ("kind", "via", "name", "file")
_SAME_LINE = ("kind", "name", "file", "line")


@dataclass(frozen=True)
class Folded:
    """Merged nodes."""

    nodes: Table  # table of nodes, in preorder
    place: Ids  # the node that each row went to, int64, shape (rows,)

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
    facts = {}
    for name in _FACTS:
        column = rows.text(name)
        codes = agreed(paths.node, column.codes[kept], len(nodes))
        facts[name] = Text(codes, column.values)
    return Folded(nodes.with_columns(**facts), paths.node[number[target]])


def identity(rows: Table, columns: Sequence[str] = IDENTITY) -> Ids:
    """One number for each distinct combination of some columns, int64, shape (rows,)."""
    return distinct_rows(*(rows[name] for name in columns))[1].astype(np.int64)


def aligned(before: ContextTree, after: ContextTree) -> list[ContextTree]:
    """Both trees on a common table of nodes: row i is one path, without samples in a tree that lacks it.

    Python frames are the same by function and file name, not by line.
    """
    moved = [{"contexts": 0}, {"contexts": len(before)}]
    rows = stacked([before.nodes, after.nodes], moved)
    folded = fold(rows, key=identity(_without_folders(rows), _SAME_PLACE))
    names = dict.fromkeys([*before.metrics, *after.metrics])
    result = []
    for tree, place in ((before, folded.place[: len(before)]), (after, folded.place[len(before) :])):
        size = len(folded.nodes)
        metrics = {
            name: (tree.metrics.get(name) or SampleStats.empty(len(tree))).grouped(place, size)
            for name in names
        }
        result.append(replace(tree, nodes=folded.nodes, metrics=metrics, event_node=None))
    return result


def _without_folders(rows: Table) -> Table:
    names = rows.text("file").map(lambda file: file.replace("\\", "/").rpartition("/")[2])
    return rows.with_columns(file=names)


def bottom_up(tree: ContextTree, *metrics: str) -> ContextTree:
    """Invert a tree: the root's children are the measured places, and below each are its callers.

    A node's inclusive statistics cover the samples at the first place of its path that were
    reached through the other places on the path.

    Args:
        metrics: metrics to keep; by default all.

    Returns:
        The inverted tree, with the same sums.

    Raises:
        TraceError: if the tree lacks one of the metrics.

    Source: DEEPCONTEXT section 4.4: the bottom-up view aggregates metrics at the same node across
    different call paths.
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
        metrics={name: own.take(source).grouped(place[last], len(order)) for name, own in kept.items()},
        # The calls at a place add up over its callers.
        known={**tree.known, "call_ns": structs.replace(METRICS["call_ns"], additive=True)},
        source=tree.source,
        notes=tree.notes,
    )


def _inverted(tree: ContextTree, source: Ids) -> tuple[Ids, Ids, Ids]:
    """Inverted nodes by level: their parents, a tree row for each, and each source's last node."""
    key = identity(tree.nodes, _SAME_LINE)
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
