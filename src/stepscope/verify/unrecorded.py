"""Recorded steps as long as they are when nobody records them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.graph import Graph

Times = NDArray[np.int64]
_ROUNDS = 60  # of halving: to the last bit of a time


def unrecorded(graph: Graph, step_ms: float) -> Graph:
    """The same steps without what recording cost, so that changes are added to what users see.

    Recording costs the same for every event, so the most where operators are small: the same time
    is taken from each task of the training loop's thread, but no more than it has. Where a device
    works, what the CPU loses to recording seldom matters, and all times are shortened alike; so are
    they made longer, where it was not recording that made the difference.

    Args:
        graph: of recorded steps.
        step_ms: what a step takes unrecorded.
    """
    steps = len(graph.window.steps)
    excess = float(graph.window.measured_ns.sum()) - step_ms * 1e6 * steps
    if excess <= 0 or graph.on_device.any():
        return _in_other_measure(graph, step_ms)
    length, gap = graph.tasks["duration_ns"], graph.tasks["gap_ns"]
    mine = (graph.threads["main"] > 0)[graph.tasks["thread"]]
    cost = _shared(np.where(mine, length + gap, 0), excess)
    from_gap = np.minimum(gap, cost)
    shorter = graph.with_tasks(duration_ns=length - (cost - from_gap), gap_ns=gap - from_gap)
    return _in_other_measure(shorter, step_ms, tasks=False)


def _shared(times: Times, total: float) -> Times:
    """The same part of each, or all of it where it has less, so that they sum up to `total`."""
    low, high = 0.0, float(times.max(initial=0))
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        low, high = (low, middle) if np.minimum(times, middle).sum() > total else (middle, high)
    return np.rint(np.minimum(times, high)).astype(np.int64)


def _in_other_measure(graph: Graph, step_ms: float, tasks: bool = True) -> Graph:
    """Every time in proportion; or only what was measured, where the tasks are right already."""
    factor = step_ms * 1e6 / float(graph.window.measured_ns.mean())
    window, begin = graph.window, graph.window.starts_ns[0]
    starts = begin + _times(window.starts_ns - begin, factor)
    end = int(begin + _times(window.end_ns - begin, factor))
    graph = replace(graph, window=replace(window, starts_ns=starts, end_ns=end))
    if not tasks:
        return graph
    lag = graph.links.with_columns(lag_ns=_times(graph.links["lag_ns"], factor))
    names = ("duration_ns", "gap_ns", "earliest_ns")
    columns = {name: _times(graph.tasks[name], factor) for name in names}
    return replace(graph, links=lag).with_tasks(**columns)


def _times(values: Any, factor: float) -> Times:
    return np.rint(np.asarray(values) * factor).astype(np.int64)
