"""Trees made smaller: what is small put together, what is not of interest hidden."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stepscope.contexts.fold import fold
from stepscope.contexts.measure import measure
from stepscope.contexts.paths import levels
from stepscope.contexts.tree import ContextTree
from stepscope.trace.schema import CONTEXT_KINDS, VIAS
from stepscope.trace.table import Table, Text

Ids = NDArray[np.int64]
Mask = NDArray[np.bool_]
OTHERS = "others"
_CALL = VIAS.index("call")


def prune(
    tree: ContextTree, by: str, *, least: float = 0.0, most: int | None = None,
    depth: int | None = None,
) -> ContextTree:  # fmt: skip
    """Put nodes that are small by a measure together, one node `others` for each caller.

    Args:
        tree: any.
        by: a measure, as `measure` takes it.
        least: keep nodes with at least this share of the whole, 0 to 1.
        most: keep no more than so many of the largest.
        depth: keep nodes with no more than so many above them.

    Returns:
        A tree with the same sums.
    """
    value = measure(tree, by).inclusive
    small = value < least * value[0]
    if depth is not None:
        small |= tree.depth > depth
    if most is not None and most < len(tree):
        # Callers stand before their calls and are as large, so that a stable order keeps them.
        small[np.argsort(-value, kind="stable")[most:]] = True
    return put_together(tree, small)


def put_together(tree: ContextTree, small: Mask) -> ContextTree:
    """Put nodes, with all below them, together as one node `others` for each caller."""
    top = _outermost(tree, small)
    if not (top >= 0).any():
        return tree
    into = np.where(top >= 0, top, np.arange(len(tree)))
    return _folded(tree, _renamed(tree.nodes, top == np.arange(len(tree))), into, top >= 0)


def hide(tree: ContextTree, unwanted: Mask) -> ContextTree:
    """Take nodes out: their callers call what they called, and get their own samples.

    Args:
        tree: any.
        unwanted: bool, shape (nodes,); the root stays whatever it says.
    """
    kept = ~unwanted
    kept[0] = True
    into = tree.nearest(kept)
    via = _handed_down(tree, ~kept)
    # A node that now has backward work as its own took longer than its calls, as do its callers.
    receives = np.zeros(len(tree), np.bool_)
    receives[into[~kept & (via != _CALL)]] = True
    rows = tree.nodes.with_columns(via=Text(via, VIAS))
    return _folded(tree, rows, into, _leads_to(tree, receives))


def _handed_down(tree: ContextTree, hidden: Mask) -> NDArray[np.int8]:
    """How each node came below the nearest one that is not hidden, code of `VIAS`."""
    via = tree.nodes["via"].astype(np.int8)
    for rows in levels(tree.depth)[1:]:
        above = tree.parent[rows]
        passes = hidden[above] & (via[rows] == _CALL)
        via[rows] = np.where(passes, via[above], via[rows])
    return via


def focus(tree: ContextTree, wanted: Mask) -> ContextTree:
    """Keep the paths to the wanted nodes and all below these; the rest becomes `others`.

    Args:
        tree: any.
        wanted: bool, shape (nodes,).
    """
    inside = tree.nearest(wanted) >= 0
    return put_together(tree, ~(_leads_to(tree, wanted) | inside))


def _leads_to(tree: ContextTree, wanted: Mask) -> Mask:
    """The nodes at or below which there is a wanted one."""
    before = np.concatenate([[0], np.cumsum(wanted)])
    leads: Mask = before[tree.end] > before[:-1]
    return leads


def _outermost(tree: ContextTree, small: Mask) -> Ids:
    """The outermost small node of each node's path, -1 where there is none; never the root."""
    top = np.full(len(tree), -1, np.int64)
    for rows in levels(tree.depth)[1:]:
        above = top[tree.parent[rows]]
        top[rows] = np.where(above >= 0, above, np.where(small[rows], rows, -1))
    return top


def _renamed(nodes: Table, changed: Mask) -> Table:
    """The nodes with some called `others`."""
    names = nodes.text("name")
    codes = names.codes.astype(np.int32)
    codes[changed] = len(names.values)
    files = nodes.text("file")
    return nodes.with_columns(
        kind=Text(np.where(changed, CONTEXT_KINDS.index(OTHERS), nodes["kind"]), CONTEXT_KINDS),
        via=Text(np.where(changed, 0, nodes["via"]), nodes.text("via").values),
        name=Text(codes, [*names.values, OTHERS]),
        file=Text(np.where(changed, len(files.values), files.codes), [*files.values, ""]),
        line=np.where(changed, -1, nodes["line"]),
    )


def _folded(tree: ContextTree, rows: Table, into: Ids, mixed: Mask) -> ContextTree:
    """The rows put together; nodes of mixed rows lose what does not add up, as `call_ns`."""
    folded = fold(rows, into)
    place = np.append(folded.place, -1)
    stays = into == np.arange(len(into))
    pure = np.ones(len(folded.nodes), np.bool_)
    pure[folded.place[mixed]] = False
    # A call's whole length is no part of its caller's.
    metrics = {
        name: own if tree.metric(name).additive else own.where(stays)
        for name, own in tree.metrics.items()
    }
    return replace(
        tree,
        nodes=folded.nodes,
        metrics={
            name: own if tree.metric(name).additive else own.where(pure)
            for name, own in folded.metrics(metrics).items()
        },
        event_node=None if tree.event_node is None else place[tree.event_node],
    )
