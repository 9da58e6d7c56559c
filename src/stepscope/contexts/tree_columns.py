"""A tree as plain columns that `json` can write."""

from __future__ import annotations

import math
from typing import Any

from stepscope.contexts.sample_stats import SampleStats
from stepscope.contexts.tree import ContextTree

_STATISTICS = ("count", "sum", "min", "max", "mean", "std")


def to_columns(tree: ContextTree) -> dict[str, Any]:
    """Nodes and metrics as lists of equal length, null for unknown values.

    Returns:
        `nodes` has the columns of the table `contexts`; each of `metrics` has its unit, its meaning
        and, in `own` and `inclusive`, a list for each statistic.
    """
    rows = list(tree.nodes.rows())
    names = [column.name for column in tree.nodes.schema.columns]
    return {
        "source": tree.source,
        "nodes": {name: [row[name] for row in rows] for name in names},
        "metrics": {name: _metric(tree, name) for name in tree.metrics},
        "notes": [vars(note) for note in tree.notes],
    }


def _metric(tree: ContextTree, name: str) -> dict[str, Any]:
    metric = tree.metric(name)
    return {
        "unit": metric.unit,
        "meaning": metric.meaning,
        "additive": metric.additive,
        "own": _statistics(tree.own(name)),
        "inclusive": _statistics(tree.inclusive(name)),
    }


def _statistics(stats: SampleStats) -> dict[str, list[Any]]:
    return {
        name: [_plain(value) for value in getattr(stats, name).tolist()] for name in _STATISTICS
    }


def _plain(value: float) -> float | None:
    if not math.isfinite(value):
        return None
    return int(value) if value == int(value) else value
