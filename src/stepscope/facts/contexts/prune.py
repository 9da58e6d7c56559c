"""Smaller trees: nodes collapsed into one per caller, others hidden or dropped."""

import re
from dataclasses import replace

import numpy as np

from stepscope.base.arrays import Codes8, Ids, Mask
from stepscope.facts.contexts.combine_trees import fold
from stepscope.facts.contexts.tree import ContextTree
from stepscope.trace.nesting import inherit, outermost
from stepscope.trace.schema import CONTEXT_KINDS, VIAS
from stepscope.trace.table import Table, Text

OTHERS = "others"
_CALL = VIAS.index("call")
_MACHINERY = re.compile(r"^<frozen (importlib\._bootstrap(_external)?|zipimport)>$")


def hide(tree: ContextTree, unwanted: Mask) -> ContextTree:
    """Hide nodes: their calls and their own samples move to their callers.

    Args:
        unwanted: bool, shape (nodes,); the root always stays.
    """
    kept = ~unwanted
    kept[0] = True
    into = tree.nearest(kept)
    via = _inherited_via(tree, ~kept)
    # A node that receives backward work exceeds the length of its calls, and so do its callers.
    receives = np.zeros(len(tree), np.bool_)
    receives[into[~kept & (via != _CALL)]] = True
    rows = tree.nodes.with_columns(via=Text(via, VIAS))
    return _folded(tree, rows, into, _leads_to(tree, receives))


def _inherited_via(tree: ContextTree, hidden: Mask) -> Codes8:
    """How each node is reached from its nearest visible ancestor, code of `VIAS`."""
    via = tree.nodes["via"]
    passes = hidden[tree.parent] & (via == _CALL)
    passes[0] = False
    return inherit(tree.nodes["parent"], np.where(passes, -1, via)).astype(np.int8)


def focus(tree: ContextTree, wanted: Mask) -> ContextTree:
    """Keep the wanted nodes with their ancestors and descendants; the rest becomes `others`."""
    rest = ~(_leads_to(tree, wanted) | (tree.nearest(wanted) >= 0))
    rest[0] = False
    # The outermost such node on each node's path, -1 for none; never the root.
    top = tree.nearest(outermost(tree.nodes["parent"], rest))
    if not (top >= 0).any():
        return tree
    own = np.arange(len(tree))
    return _folded(tree, _renamed(tree.nodes, top == own), np.where(top >= 0, top, own), top >= 0)


def _leads_to(tree: ContextTree, wanted: Mask) -> Mask:
    """Nodes that are wanted or have a wanted descendant."""
    return tree.below(wanted) > 0


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
    keep = _leads_to(tree, used)
    keep[0] = True
    if keep.all():
        return tree
    rows = np.flatnonzero(keep)
    number = np.full(len(tree) + 1, -1)
    number[rows] = np.arange(len(rows))
    return replace(
        tree,
        nodes=tree.nodes.take(rows).with_columns(parent=number[tree.parent[rows]]),
        metrics={name: own.take(rows) for name, own in tree.metrics.items()},
        event_node=None if tree.event_node is None else number[tree.event_node],
    )


def without_import_machinery(tree: ContextTree) -> ContextTree:
    """The tree in which an importing line calls the imported module directly.

    Up to a dozen frames of the interpreter lie between the two, which Python's tracebacks leave out
    too. Their time, for finding and loading the module, goes to the importing line.

    Returns:
        A tree with the same sums.
    """
    machinery = tree.nodes.text("file").where(lambda file: bool(_MACHINERY.match(file)))
    machinery &= tree.nodes.text("kind").mask("python")
    return hide(tree, machinery) if machinery.any() else tree
