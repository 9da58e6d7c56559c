"""Values of events, inherited by their tasks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.arrays import IntArray
from stepscope.graph.graph import Graph
from stepscope.trace.nesting import inherit


def inherited(graph: Graph, own: IntArray) -> NDArray[np.int64]:
    """For each task, the value of the innermost event around it, or around its launch.

    Args:
        graph: any graph.
        own: a value per event, -1 for none, shape (events,).

    Returns:
        int64, shape (tasks,), -1 where no event around has a value.
    """
    trace = graph.trace
    inner = inherit(trace.events["parent"], own).astype(np.int64)
    launches = trace["launches"]
    inner[launches["device_event"]] = inner[launches["cpu_event"]]
    result: NDArray[np.int64] = np.append(inner, -1)[graph.tasks["event"]]
    return result
