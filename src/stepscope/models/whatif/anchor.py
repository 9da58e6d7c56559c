"""A graph whose CPU runs at the pace of steps that nothing watched.

Recording makes launches longer, so a change that leaves the CPU as the limit would be predicted too
slow. The replay of an anchored graph is the unwatched step, and predictions are absolute times.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stepscope.graph import Graph, scale, simulate

_LEAST_PACE, _MOST_PACE = 0.2, 4.0  # of the recorded pace; chosen: beyond, the steps are others
_ROUNDS = 16  # of bisection: the pace to within 0.01 %
_LIMITS = 0.3  # of a CPU that is slower, the share by which the step is; chosen: it limits the step


def host_ms(graph: Graph) -> float:
    """The step if the device took no time: what the CPU needs to launch it, ms."""
    device = graph.on_device
    columns = {name: np.where(device, 0, graph.tasks[name]) for name in ("duration_ns", "gap_ns")}
    return step_ms(graph.with_tasks(**columns))


def step_ms(graph: Graph) -> float:
    """The mean simulated step, ms."""
    return float(simulate(graph).step_ns.mean()) / 1e6


def anchored(
    graph: Graph, unwatched_ms: float | None = None, unwatched_host_ms: float | None = None
) -> Graph:
    """The graph at the CPU's unwatched pace.

    Args:
        unwatched_ms: the step that nothing watched; used where the CPU limits it.
        unwatched_host_ms: what its CPU needs, launching into an empty queue; used if it is known.

    Returns:
        The same graph where neither says anything about the CPU's pace.
    """
    if not graph.on_device.any():
        return graph
    if unwatched_host_ms is not None:
        return _at_pace(graph, host_ms, unwatched_host_ms)
    if unwatched_ms is not None and _cpu_limits(graph):
        return _at_pace(graph, step_ms, unwatched_ms)
    return graph


def _cpu_limits(graph: Graph) -> bool:
    slower, faster = (step_ms(_paced(graph, pace)) for pace in (1.1, 0.9))
    return (slower - faster) / (0.2 * step_ms(graph)) >= _LIMITS


def _paced(graph: Graph, pace: float) -> Graph:
    return scale(graph, ~graph.on_device, pace, gaps=True)


def _at_pace(graph: Graph, measure: Callable[[Graph], float], target: float) -> Graph:
    low, high = _LEAST_PACE, _MOST_PACE
    for _ in range(_ROUNDS):
        middle = (low * high) ** 0.5
        if measure(_paced(graph, middle)) < target:
            low = middle
        else:
            high = middle
    return _paced(graph, (low * high) ** 0.5)
