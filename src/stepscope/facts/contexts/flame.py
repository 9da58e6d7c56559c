"""The boxes of a flame graph: plain columns and a string table, limited to the largest nodes.

Boxes are in preorder, the largest sibling first, so that a page lays them out in one pass: a box
begins where the previous box of its level ends, or where its caller begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepscope.base.arrays import Array, Floats, Ids, Mask
from stepscope.facts.contexts.call_paths import levels, preorder
from stepscope.facts.contexts.node_values import hot_path, measure, plain_numbers, short_label
from stepscope.facts.contexts.tree import ContextTree
from stepscope.trace.row_order import inverse
from stepscope.trace.sets import Interner
from stepscope.trace.table import Text

MOST = 100_000  # nodes; of the others those below a node share one box
REST = -1


@dataclass(frozen=True)
class FlameBoxes:
    """The nodes that are shown, and the rest boxes that replace the others.

    Attributes:
        node: the tree's node, int64, shape (boxes,), -1 for a rest (a caller's hidden nodes).
        caller: the parent node of each box, int64, shape (boxes,).
        parent: the caller's box, int64, shape (boxes,), -1 for the first box.
        tops: the outermost hidden nodes, int64.
        hidden: number of nodes in each rest, int64, shape (boxes,).
    """

    node: Ids
    caller: Ids
    parent: Ids
    tops: Ids
    hidden: Ids


def flame(
    tree: ContextTree,
    by: str,
    *,
    start: int = 0,
    most: int = MOST,
    before: ContextTree | None = None,
    marked: Sequence[Sequence[int]] = (),
) -> dict[str, Any]:
    """The boxes of a flame graph.

    Args:
        by: a measure, as `measure` takes it.
        start: the node of the first box; the result's `path` leads to it.
        most: maximum number of nodes; the hidden nodes below a node are one box, a rest.
        before: a tree with the same nodes (`difference`) to compare with.
        marked: nodes to color, one sequence per finding.

    Returns:
        A dict that `json` can write. `boxes` has columns of equal length in preorder: `node` (-1
        for a rest), `parent` (a box), `name`, `kind` and `file` (indices into `strings`), `line`
        (-1 for none), `value` (inclusive), `own`, `count` (samples), `hidden`, `hot` (1 on the hot
        path), `backward` (1 for backward work below its forward call), `finding` (index of the
        first finding, -1 for none), and, in a comparison, `before` and `width`, which covers both
        profiles.
    """
    found = measure(tree, by)
    value = found.inclusive
    earlier = measure(before, by).inclusive if before is not None else None
    size = value if before is None else _widths(tree, before, by)
    boxes = _laid_out(tree, size, _shown(tree, size, start, most), start)
    strings: Interner[str] = Interner()
    return {
        "by": by,
        "meaning": found.meaning,
        "unit": found.unit,
        "start": start,
        "path": [{"node": node, "name": short_label(tree, node)} for node in tree.path(start)],
        "total": float(value[start]),
        "total_before": None if earlier is None else float(earlier[start]),
        "nodes": int(tree.end[start] - start),
        "boxes": _columns(tree, boxes, by, marked, strings) | _compared(tree, boxes, size, earlier),
        "strings": list(strings),
    }


# -- choice and layout of boxes


def _widths(tree: ContextTree, before: ContextTree, by: str) -> Floats:
    """The width of each node for both profiles: siblings together never exceed their caller."""
    width = np.maximum(measure(tree, by).own, measure(before, by).own)
    for rows in reversed(levels(tree.depth)[1:]):
        np.add.at(width, tree.parent[rows], width[rows])
    return width


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
    place = preorder(number[caller[order]])
    order = order[inverse(place)]
    number[nodes] = inverse(order)[: len(nodes)]
    hidden = _hidden_below(tree, missing, tops)
    return FlameBoxes(
        node=node[order],
        caller=caller[order],
        parent=number[caller[order]],
        tops=tops,
        hidden=np.where(node[order] < 0, hidden[caller[order]], 0),
    )


def _hidden_below(tree: ContextTree, missing: Ids, tops: Ids) -> Ids:
    inside = tree.below(np.bincount(missing, minlength=len(tree)))[tops]
    return np.bincount(tree.parent[tops], inside, len(tree)).astype(np.int64)


# -- columns of the boxes


def _columns(
    tree: ContextTree, boxes: FlameBoxes, by: str, marked: Sequence[Sequence[int]], strings: Interner[str]
) -> dict[str, list[Any]]:
    found = measure(tree, by)
    hot = np.zeros(len(tree), np.int64)
    hot[hot_path(tree, by, int(boxes.node[0]))] = 1
    finding = np.full(len(tree), -1, np.int64)
    for number, evidence in reversed(list(enumerate(marked))):
        finding[list(evidence)] = number
    kinds, files = tree.nodes.text("kind"), tree.nodes.text("file")
    nodes: list[int] = boxes.node.tolist()
    return {
        "node": nodes,
        "parent": boxes.parent.tolist(),
        "name": strings.codes(_name(tree, boxes, box) for box in range(len(nodes))).tolist(),
        "kind": strings.codes(_text(kinds, node, "others") for node in nodes).tolist(),
        "file": strings.codes(_text(files, node, "") for node in nodes).tolist(),
        "line": _of(boxes, tree.nodes["line"], -1).tolist(),
        "value": _values(tree, boxes, found.inclusive),
        "own": plain_numbers(_of(boxes, found.own, 0.0)),
        "count": _of(boxes, tree.inclusive(found.metric).count, 0).tolist(),
        "hidden": boxes.hidden.tolist(),
        "hot": _of(boxes, hot, 0).tolist(),
        "backward": _of(boxes, tree.nodes.text("via").mask("backward").astype(int), 0).tolist(),
        "finding": _of(boxes, finding, -1).tolist(),
    }


def _compared(
    tree: ContextTree, boxes: FlameBoxes, size: Floats, earlier: Floats | None
) -> dict[str, list[Any]]:
    """Earlier values of the boxes, and widths for the larger of both."""
    if earlier is None:
        return {}
    return {"before": _values(tree, boxes, earlier), "width": _values(tree, boxes, size)}


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
