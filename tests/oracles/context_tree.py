"""What holds of every calling-context tree, however it was made."""

from __future__ import annotations

import numpy as np

from stepscope.facts.contexts.call_paths import levels
from stepscope.facts.contexts.metrics import SampleStats
from stepscope.facts.contexts.tree import ContextTree
from stepscope.trace.schema import VIAS

_CALL = VIAS.index("call")
_TOLERANCE = 1e-9  # relative: sums of float64 in another order differ by less


def checked(tree: ContextTree) -> ContextTree:
    """The tree itself; AssertionError if nodes are unordered, samples lost, or calls exceed a caller."""
    _check_shape(tree)
    for name, own in tree.metrics.items():
        _check_stats(name, own)
        if tree.metric(name).additive:
            whole = tree.inclusive(name)
            assert whole.count[0] == own.count.sum(), f"{name}: samples were lost"
            assert _close(whole.sum[0], own.sum.sum()), f"{name}: part of the sum was lost"
    if "call_ns" in tree.metrics and "cpu_ns" in tree.metrics:
        _check_nesting(tree)
    return tree


def _check_shape(tree: ContextTree) -> None:
    assert len(tree), "expected a root"
    assert tree.parent[0] == -1, "expected the root at row 0"
    assert (tree.parent[1:] >= 0).all(), "expected one root"
    assert (tree.parent < np.arange(len(tree))).all(), "expected callers before their calls"
    inside = tree.end <= np.where(tree.parent >= 0, tree.end[tree.parent], len(tree))
    assert inside.all(), "expected the descendants of a node to follow it"


def _check_stats(name: str, stats: SampleStats) -> None:
    some = stats.count > 0
    slack = _TOLERANCE * np.maximum(np.abs(stats.max), np.abs(stats.min)) + _TOLERANCE
    assert (stats.count >= 0).all(), f"{name}: a negative count"
    # Unknown values are NaN, for which no comparison holds.
    assert not (stats.mean[some] > (stats.max + slack)[some]).any(), f"{name}: mean above maximum"
    assert not (stats.mean[some] < (stats.min - slack)[some]).any(), f"{name}: mean below minimum"
    assert (stats.sum[~some] == 0).all(), f"{name}: a sum of no samples"


def _check_nesting(tree: ContextTree) -> None:
    """Check that nested calls and own time together do not exceed a call."""
    calls = tree.own("call_ns")
    called = tree.nodes["via"] == _CALL
    spent = tree.own("cpu_ns").sum.copy()
    for rows in reversed(levels(tree.depth)):
        real = rows[calls.count[rows] > 0]
        over = spent[real] > calls.sum[real] * (1 + _TOLERANCE)
        assert not over.any(), f"calls inside {tree.label(real[over][0])!r} exceed it"
        inner = rows[called[rows] & (tree.parent[rows] >= 0)]
        np.add.at(spent, tree.parent[inner], spent[inner])


def _close(left: float, right: float) -> bool:
    return bool(abs(left - right) <= _TOLERANCE * max(abs(left), abs(right), 1.0))
