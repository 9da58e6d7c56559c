"""The primitive *scale*: change the duration of tasks."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from stepscope.arrays import Mask
from stepscope.errors import GraphError
from stepscope.graph.graph import Graph


def scale(graph: Graph, tasks: Mask, factor: ArrayLike, gaps: bool = False) -> Graph:
    """The graph in which some tasks take `factor` times as long.

    Args:
        graph: any graph.
        tasks: tasks to scale, bool, shape (tasks,).
        factor: at least 0; a single one, or one per selected task.
        gaps: whether the gaps after them are scaled too.

    Raises:
        GraphError: if a factor is negative or not a number.

    Example:
        >>> scale(graph, select(graph, kind="gemm"), 1 / 3)  # doctest: +SKIP

    Source: DAYDREAM section 4.4, "shrink/scale".
    """
    factors = np.asarray(factor, np.float64)
    if not (np.isfinite(factors) & (factors >= 0)).all():
        raise GraphError(f"expected a factor of at least 0, found {factor!r}")
    columns = {}
    for name in ("duration_ns", "gap_ns") if gaps else ("duration_ns",):
        column = graph.tasks[name].copy()
        column[tasks] = np.rint(column[tasks] * factors)
        columns[name] = column
    return graph.with_tasks(**columns)
