"""Smaller trees: nodes collapsed into one per caller, others hidden or dropped."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from msgspec import structs

from stepscope.base.arrays import Codes8, Ids, IntArray, Mask
from stepscope.facts.contexts.call_paths import agreed, distinct, merge_paths, preorder
from stepscope.facts.contexts.metrics import METRICS, SampleStats
from stepscope.facts.contexts.tree import ContextTree
from stepscope.trace.concat import stacked
from stepscope.trace.nesting import inherit, outermost
from stepscope.trace.row_order import inverse
from stepscope.trace.schema import CONTEXT_KINDS, VIAS
from stepscope.trace.sets import distinct_rows, mask_of
from stepscope.trace.table import Table, Text

OTHERS = "others"
_CALL = VIAS.index("call")
_MACHINERY = re.compile(r"^<frozen (importlib\._bootstrap(_external)?|zipimport)>$")


def hide(tree: ContextTree, unwanted: Mask) -> ContextTree:
    """Hide nodes, shape (nodes,), but the root: their calls and own samples move to their callers."""
    kept = ~unwanted
    kept[0] = True
    into = tree.nearest(kept)
    via = _inherited_via(tree, ~kept)
    # A node that receives backward work exceeds the length of its calls, and so do its callers.
    receives = mask_of(into[~kept & (via != _CALL)], len(tree))
    return _folded(tree, tree.nodes.with_columns(via=Text(via, VIAS)), into, tree.leads_to(receives))


def _inherited_via(tree: ContextTree, hidden: Mask) -> Codes8:
    """How each node is reached from its nearest visible ancestor, code of `VIAS`."""
    via = tree.nodes["via"]
    passes = hidden[tree.parent] & (via == _CALL)
    passes[0] = False
    return inherit(tree.nodes["parent"], np.where(passes, -1, via)).astype(np.int8)


def focus(tree: ContextTree, wanted: Mask) -> ContextTree:
    """Keep the wanted nodes with their ancestors and descendants; the rest becomes `others`."""
    rest = ~(tree.leads_to(wanted) | (tree.nearest(wanted) >= 0))
    rest[0] = False
    # The outermost such node on each node's path, -1 for none; never the root.
    top = tree.nearest(outermost(tree.nodes["parent"], rest))
    if not (top >= 0).any():
        return tree
    own = np.arange(len(tree))
    return _folded(tree, _renamed(tree.nodes, top == own), np.where(top >= 0, top, own), top >= 0)


def _renamed(nodes: Table, changed: Mask) -> Table:
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
    """The rows merged; nodes made of mixed rows lose metrics that do not add up, as `call_ns`."""
    folded = fold(rows, into)
    place = np.append(folded.place, -1)
    stays = into == np.arange(len(into))
    pure = np.ones(len(folded.nodes), np.bool_)
    pure[folded.place[mixed]] = False
    # The length of a call is not part of the length of its caller.
    metrics = {
        name: own if tree.metric(name).additive else own.where(stays) for name, own in tree.metrics.items()
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


def without_unused(tree: ContextTree) -> ContextTree:
    """The tree without subtrees that have no samples; the root stays."""
    used = np.zeros(len(tree), np.bool_)
    for own in tree.metrics.values():
        used |= own.count > 0
    keep = tree.leads_to(used)
    keep[0] = True
    rows = np.flatnonzero(keep)
    number = inverse(rows, len(tree) + 1)
    return replace(
        tree,
        nodes=tree.nodes.take(rows).with_columns(parent=number[tree.parent[rows]]),
        metrics={name: own.take(rows) for name, own in tree.metrics.items()},
        event_node=None if tree.event_node is None else number[tree.event_node],
    )


def without_import_machinery(tree: ContextTree) -> ContextTree:
    """The tree, with the same sums, in which an importing line calls the imported module directly.

    Up to a dozen frames of the interpreter lie between the two, which Python's tracebacks leave out
    too. Their time, for finding and loading the module, goes to the importing line.
    """
    machinery = tree.nodes.text("file").where(lambda file: bool(_MACHINERY.match(file)))
    machinery &= tree.nodes.text("kind").mask("python")
    return hide(tree, machinery) if machinery.any() else tree


# -- trees made of other trees: merged, aligned for a comparison, or turned bottom-up

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
    """Merge rows with the same path; facts on which the rows of a node disagree become null.

    Args:
        rows: of one or more trees, `parent` numbered across all of them; the roots are merged.
        into: the row that absorbs each row, by default itself; integer, shape (rows,).
        key: distinguishes rows with the same parent, by default `IDENTITY`; int64, shape (rows,).
    """
    target = np.arange(len(rows)) if into is None else np.asarray(into, np.int64)
    kept = np.flatnonzero(target == np.arange(len(rows)))
    number = inverse(kept, len(rows) + 1)
    above = rows["parent"][kept].astype(np.int64)
    parent = np.where(above >= 0, number[target[above]], -1)
    paths = merge_paths(parent, (identity(rows) if key is None else key)[kept])
    _, first = np.unique(paths.node, return_index=True)
    nodes = rows.take(kept[first]).with_columns(parent=paths.parent)
    facts = {}
    for name in _FACTS:
        column = rows.text(name)
        facts[name] = Text(agreed(paths.node, column.codes[kept], len(nodes)), column.values)
    return Folded(nodes.with_columns(**facts), paths.node[number[target]])


def identity(rows: Table, columns: Sequence[str] = IDENTITY) -> Ids:
    """One number for each distinct combination of some columns, int64, shape (rows,)."""
    return distinct_rows(*(rows[name] for name in columns))[1].astype(np.int64)


def aligned(before: ContextTree, after: ContextTree) -> list[ContextTree]:
    """Both trees on a common table of nodes: row i is one path, without samples in a tree that lacks it.

    Python frames are the same by function and file name, not by line.
    """
    rows = stacked([before.nodes, after.nodes], [{"contexts": 0}, {"contexts": len(before)}])
    names_alone = rows.text("file").map(lambda file: file.replace("\\", "/").rpartition("/")[2])
    folded = fold(rows, key=identity(rows.with_columns(file=names_alone), _SAME_PLACE))
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
