"""Costs of source lines from a calling-context tree, callees included."""

import numpy as np

from stepscope.base.arrays import Floats, Ids
from stepscope.facts.contexts.tree import ContextTree
from stepscope.facts.timeline.source_lines import LineCost, SourcePlace
from stepscope.trace.row_order import outermost_of_key

_ENGINE_FILES = ("torch/autograd/graph.py", "torch/autograd/__init__.py")


def line_totals(tree: ContextTree) -> list[LineCost]:
    """The cost of every Python line over the whole tree, in the order of its nodes; times in ns.

    Inclusive times of lines overlap; a line that calls itself counts once. The tree has backward work below
    the forward call that it differentiates. A line that starts backward (`loss.backward()`, and the lines
    that call it) runs that work, so its inclusive time contains it too; the forward line lists it separately.
    """
    nodes = tree.nodes
    rows = np.flatnonzero(nodes.text("kind").mask("python") & (nodes["line"] > 0))
    files, names = nodes.text("file"), nodes.text("name")
    places = [
        SourcePlace(files[row] or "", int(nodes["line"][row]), "frame", names[row] or "")
        for row in rows.tolist()
    ]
    number = {place: line for line, place in enumerate(dict.fromkeys(places))}
    line = np.full(len(tree), -1, np.int64)
    line[rows] = [number[place] for place in places]
    outer = rows[outermost_of_key(rows, tree.end[rows], line[rows])]
    cpu, device = (_times(tree, name, line, outer, len(number)) for name in _metrics(tree))
    return [
        LineCost(place, [], 0, *cpu[at][:2], *device[at][:2], cpu[at][2], device[at][2])
        for place, at in number.items()
        if place.file
    ]


def whole_ns(tree: ContextTree) -> tuple[int, int]:
    """CPU and device time of the whole tree, the reference for shares of lines."""
    cpu, device = (int(tree.own(name).sum.sum()) if name in tree.metrics else 0 for name in _metrics(tree))
    return cpu, device


def _metrics(tree: ContextTree) -> tuple[str, str]:
    sampled = (name for name in ("sampled_real_ns", "sampled_cpu_ns") if tree.has(name))
    return next(sampled, "cpu_ns"), "device_ns"


def _times(tree: ContextTree, metric: str, line: Ids, outer: Ids, lines: int) -> list[tuple[int, int, int]]:
    """Inclusive, own and backward time of each line."""
    if metric not in tree.metrics:
        return [(0, 0, 0)] * lines
    own = tree.own(metric).sum
    backward = tree.nearest(tree.nodes.text("via").mask("backward")) >= 0
    started = np.bincount(line[outer], tree.below(_starts(tree))[outer], lines)
    called = np.bincount(line[outer], tree.below(np.where(backward, 0, own))[outer], lines)
    apart = np.bincount(line[outer], tree.below(np.where(backward, own, 0))[outer], lines)
    nearest = tree.nearest(line >= 0)
    known = (nearest >= 0) & ~backward
    of_own = np.bincount(line[nearest[known]], own[known], lines)
    inclusive = called + started * own[backward].sum()
    columns = inclusive, of_own, np.where(started > 0, 0, apart)
    return list(zip(*(column.astype(np.int64).tolist() for column in columns), strict=True))


def _starts(tree: ContextTree) -> Floats:
    """The share of the tree's backward work that each node starts, by number of calls.

    In PyTorch, one Python function of the engine starts all backward work.
    """
    nodes = tree.nodes
    engine = nodes.text("name").mask("_engine_run_backward", "backward", "grad")
    engine &= nodes.text("file").where(lambda file: file.endswith(_ENGINE_FILES))
    innermost = engine.copy()
    for row in np.flatnonzero(engine).tolist():
        innermost[row] = not engine[row + 1 : tree.end[row]].any()
    calls = tree.inclusive("calls").count if "calls" in tree.metrics else np.ones(len(tree))
    weight = np.where(innermost, np.maximum(calls, 1), 0).astype(np.float64)
    return weight / max(float(weight.sum()), 1.0)
