"""The boxes of a flame graph: plain columns and a string table, limited to the largest nodes.

Boxes are in preorder, the largest sibling first, so that a page lays them out in one pass: a box
begins where the previous box of its level ends, or where its caller begins.
"""

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from stepscope.base.arrays import Array, Floats, Ids, Mask
from stepscope.facts.annotate.modules.costs import subtree_totals
from stepscope.facts.contexts.call_paths import preorder
from stepscope.facts.contexts.node_values import TreeMeasure, hot_path, measure, plain_numbers, short_label
from stepscope.facts.contexts.tree import ContextTree
from stepscope.trace.row_order import inverse
from stepscope.trace.sets import Interner
from stepscope.trace.table import Text

MOST = 100_000  # nodes; of the others those below a node share one box
REST = -1


class PathNode(msgspec.Struct):
    """A node on the path to the first box."""

    node: int
    name: str


class Boxes(msgspec.Struct):
    """Columns of one length, in preorder, the largest of siblings first."""

    node: list[int]  # of the tree; -1 for a rest, which groups nodes too small to show
    parent: list[int]  # box of the caller, -1 for the first box
    name: list[int]  # index into `strings`
    kind: list[int]  # index into `strings`
    file: list[int]  # index into `strings`
    line: list[int]  # -1 if unknown
    value: list[int | float]  # of the node and all below it
    own: list[int | float]  # of the node alone
    count: list[int]  # samples or events
    hidden: list[int]  # number of nodes that a rest groups; ask again with `start` to see them
    hot: list[int]  # 1 on the hot path
    backward: list[int]  # 1 if the box is below its caller as backward work
    # value in the other trace, of as many steps, if two traces are compared
    before: list[int | float] | UnsetType = UNSET
    width: list[int | float] | UnsetType = UNSET  # what it takes to draw both, if two traces are compared


class FlameGraph(msgspec.Struct, kw_only=True):
    """The boxes of a flame graph."""

    by: str  # name of the measure shown
    meaning: str
    unit: str  # ns, B, or empty for a number
    start: int  # node of the first box
    path: list[PathNode]  # leads to the first box
    total: int | float  # value of the first box
    total_before: int | float | None  # the same in the other trace, if two traces are compared
    nodes: int  # number of nodes at and below `start`
    boxes: Boxes
    strings: list[str]


@dataclass(frozen=True)
class FlameBoxes:
    """The nodes that are shown, and the rest boxes that replace the others."""

    node: Ids  # the tree's node, int64, shape (boxes,), -1 for a rest (a caller's hidden nodes)
    caller: Ids  # the parent node of each box, int64, shape (boxes,)
    parent: Ids  # the caller's box, int64, shape (boxes,), -1 for the first box
    tops: Ids  # the outermost hidden nodes, int64
    hidden: Ids  # number of nodes in each rest, int64, shape (boxes,)


def flame(
    tree: ContextTree,
    by: str,
    *,
    start: int = 0,
    most: int = MOST,
    before: ContextTree | None = None,
    times: float = 1.0,
) -> FlameGraph:
    """The boxes of a flame graph.

    Args:
        by: a measure, as `measure` takes it.
        start: the node of the first box.
        most: maximum number of nodes; the hidden nodes below a node are one box, a rest.
        before: a tree with the same nodes (`aligned`) to compare with.
        times: what its values are multiplied by, such as 2 where it is of half as many steps.
    """
    shown, earlier = measure(tree, by), None
    size = shown.inclusive
    if before is not None:
        other = measure(before, by)
        earlier = other.inclusive * times
        # For both profiles: siblings together never exceed their caller.
        size = subtree_totals(np.maximum(shown.own, other.own * times), tree.nodes["parent"])
    boxes = _laid_out(tree, size, _shown(tree, size, start, most), start)
    strings: Interner[str] = Interner()
    columns = _columns(tree, boxes, shown, strings)
    if earlier is not None:
        columns.before, columns.width = _values(tree, boxes, earlier), _values(tree, boxes, size)
    return FlameGraph(
        by=by,
        meaning=shown.meaning,
        unit=shown.unit,
        start=start,
        path=[PathNode(node, short_label(tree, node)) for node in tree.path(start)],
        total=float(shown.inclusive[start]),
        total_before=None if earlier is None else float(earlier[start]),
        nodes=int(tree.end[start] - start),
        boxes=columns,
        strings=list(strings),
    )


# -- choice and layout of boxes


def _shown(tree: ContextTree, size: Floats, start: int, most: int) -> Mask:
    """The largest nodes below `start` with a value; callers are never smaller than their calls."""
    rows = tree.subtree(start)
    rows = rows[(size[rows] > 0) | (rows == start)]
    shown = np.zeros(len(tree), np.bool_)
    # Rows are in preorder, and the sort is stable: a caller comes before its calls.
    shown[rows[np.argsort(-size[rows], kind="stable")[:most]]] = True
    return shown


def _laid_out(tree: ContextTree, size: Floats, shown: Mask, start: int) -> FlameBoxes:
    """The shown nodes and their rests in preorder, siblings by size, a rest last."""
    nodes, inside = np.flatnonzero(shown), tree.subtree(start)[1:]
    missing = inside[~shown[inside] & (size[inside] > 0)]
    tops = missing[shown[tree.parent[missing]]]
    rests = np.unique(tree.parent[tops])
    node = np.concatenate([nodes, np.full(len(rests), REST)])
    caller = np.concatenate([np.where(nodes == start, -1, tree.parent[nodes]), rests])
    weight = np.concatenate([-size[nodes], np.zeros(len(rests))])
    level = np.concatenate([tree.depth[nodes], tree.depth[rests] + 1])
    order = np.lexsort((weight, level))
    number = np.full(len(tree) + 1, -1, np.int64)  # the last is for "no caller"
    number[nodes] = inverse(order)[: len(nodes)]
    order = order[inverse(preorder(number[caller[order]]))]
    number[nodes] = inverse(order)[: len(nodes)]
    inside = tree.below(np.bincount(missing, minlength=len(tree)))[tops]
    hidden = np.bincount(tree.parent[tops], inside, len(tree)).astype(np.int64)
    return FlameBoxes(
        node=node[order],
        caller=caller[order],
        parent=number[caller[order]],
        tops=tops,
        hidden=np.where(node[order] < 0, hidden[caller[order]], 0),
    )


# -- columns of the boxes


def _columns(tree: ContextTree, boxes: FlameBoxes, shown: TreeMeasure, strings: Interner[str]) -> Boxes:
    hot = np.zeros(len(tree), np.int64)
    hot[hot_path(tree, shown.name, int(boxes.node[0]))] = 1
    kinds, files = tree.nodes.text("kind"), tree.nodes.text("file")
    nodes: list[int] = boxes.node.tolist()
    return Boxes(
        node=nodes,
        parent=boxes.parent.tolist(),
        name=strings.codes(_name(tree, boxes, box) for box in range(len(nodes))).tolist(),
        kind=strings.codes(_text(kinds, node, "others") for node in nodes).tolist(),
        file=strings.codes(_text(files, node, "") for node in nodes).tolist(),
        line=_of(boxes, tree.nodes["line"], -1).tolist(),
        value=_values(tree, boxes, shown.inclusive),
        own=plain_numbers(_of(boxes, shown.own, 0.0)),
        count=_of(boxes, tree.inclusive(shown.metric).count, 0).tolist(),
        hidden=boxes.hidden.tolist(),
        hot=_of(boxes, hot, 0).tolist(),
        backward=_of(boxes, tree.nodes.text("via").mask("backward").astype(int), 0).tolist(),
    )


def _name(tree: ContextTree, boxes: FlameBoxes, box: int) -> str:
    node = int(boxes.node[box])
    return short_label(tree, node) if node >= 0 else f"{boxes.hidden[box]} more"


def _text(column: Text, node: int, rest: str) -> str:
    return column[node] or "" if node >= 0 else rest


def _of(boxes: FlameBoxes, values: Array, rest: float) -> Array:
    """Values of the boxes' nodes, `rest` for a rest."""
    return np.where(boxes.node >= 0, values[np.maximum(boxes.node, 0)], rest)


def _values(tree: ContextTree, boxes: FlameBoxes, whole: Floats) -> list[Any]:
    """Inclusive values; a rest has the sum of its hidden nodes."""
    left = np.bincount(tree.parent[boxes.tops], whole[boxes.tops], len(tree))
    return plain_numbers(np.where(boxes.node >= 0, whole[boxes.node], left[boxes.caller]))
