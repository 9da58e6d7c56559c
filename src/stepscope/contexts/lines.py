"""What source lines cost by a calling-context tree, with all that they call."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepscope.contexts.tree import ContextTree

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class LineTotal:
    """What one line of a Python file took over the whole tree.

    Attributes:
        file: as recorded.
        line: from 1.
        function: that it is in.
        cpu_ns, device_ns: of what it called, and of the backward of that. Where samples of time
            were taken, they tell the former: of Python too.
    """

    file: str
    line: int
    function: str
    cpu_ns: tuple[int, int]
    device_ns: tuple[int, int]


def line_totals(tree: ContextTree) -> list[LineTotal]:
    """Every line of Python that the tree names, in the order of its nodes.

    A line has all that it calls, so lines overlap, as inclusive times do; a line that calls itself
    counts once. Backward work hangs below its forward call, and so counts for that call's line.
    """
    nodes = tree.nodes
    rows = np.flatnonzero(nodes.text("kind").mask("python") & (nodes["line"] > 0))
    files, names = nodes.text("file"), nodes.text("name")
    places = [
        (files[row] or "", int(nodes["line"][row]), names[row] or "") for row in rows.tolist()
    ]
    number = {place: line for line, place in enumerate(dict.fromkeys(places))}
    line = np.array([number[place] for place in places], np.int64)
    outer = _without_recursion(rows, tree.end[rows], line)
    cpu, device = (_sums(tree, name, rows[outer], line[outer], len(number))
                   for name in _metrics(tree))  # fmt: skip
    return [LineTotal(*place, cpu[at], device[at]) for place, at in number.items() if place[0]]


def whole_ns(tree: ContextTree) -> tuple[int, int]:
    """CPU and device time of the whole tree, of which lines have their part."""
    cpu, device = (int(tree.own(name).sum.sum()) if name in tree.metrics else 0
                   for name in _metrics(tree))  # fmt: skip
    return cpu, device


def _metrics(tree: ContextTree) -> tuple[str, str]:
    """What tells CPU and device time."""
    sampled = (name for name in ("sampled_real_ns", "sampled_cpu_ns") if tree.has(name))
    return next(sampled, "cpu_ns"), "device_ns"


def _without_recursion(node: Ids, end: Ids, line: Ids) -> NDArray[np.bool_]:
    """Which of some nodes, ascending, lie in no other one of the same line."""
    order = np.lexsort((node, line))
    beyond = line[order] * (int(end.max(initial=0)) + 1)
    reach = np.maximum.accumulate(end[order] + beyond)
    outer = np.ones(len(node), np.bool_)
    outer[order[1:]] = node[order[1:]] + beyond[1:] >= reach[:-1]
    return outer


def _sums(
    tree: ContextTree, metric: str, node: Ids, line: Ids, lines: int
) -> list[tuple[int, int]]:
    """Nanoseconds called and of backward, for each line."""
    if metric not in tree.metrics:
        return [(0, 0)] * lines
    own = tree.own(metric).sum
    backward = tree.nearest(tree.nodes.text("via").mask("backward")) >= 0
    parts = [np.bincount(line, _inclusive(tree, part, node), lines).astype(np.int64).tolist()
             for part in (np.where(backward, 0, own), np.where(backward, own, 0))]  # fmt: skip
    return list(zip(*parts, strict=True))


def _inclusive(tree: ContextTree, own: NDArray[np.float64], node: Ids) -> NDArray[np.float64]:
    """The sum at and below each of some nodes; the rows below one follow it."""
    before = np.concatenate([[0.0], np.cumsum(own)])
    inside: NDArray[np.float64] = before[tree.end[node]] - before[node]
    return inside
