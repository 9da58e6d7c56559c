"""What is computed on graphs by compiled code, in Python: its specification."""

from __future__ import annotations

import numpy as np

from stepscope.base.arrays import Floats, Ids
from stepscope.graph.simulate import Simulation


def path_to(simulation: Simulation, last: int) -> Ids:
    """A task, the one whose end started it, the one whose end started that, first to last."""
    path, causes = [last], _causes(simulation).tolist()
    while (last := causes[last]) >= 0:
        path.append(last)
    return np.array(path[::-1])


def _causes(simulation: Simulation) -> Ids:
    """For each task, a task whose end started it, or -1."""
    edges, start = simulation.graph.edges, simulation.start_ns
    binding = start[edges.source] + edges.delay_ns == start[edges.target]
    # Dependencies that took time come first, so that the path cannot run in a cycle.
    order = np.argsort(edges.delay_ns[binding], kind="stable")
    cause = np.full(len(start), -1, np.int64)
    cause[edges.target[binding][order]] = edges.source[binding][order]
    return cause


def longest_path(ready: Floats, first: Ids, target: Ids, delay: Floats) -> Floats:
    waits_for = np.bincount(target, minlength=len(ready)).tolist()
    at, firsts, targets, delays = ready.tolist(), first.tolist(), target.tolist(), delay.tolist()
    order = [node for node, count in enumerate(waits_for) if not count]
    for node in order:
        for edge in range(firsts[node], firsts[node + 1]):
            after = targets[edge]
            at[after] = max(at[after], at[node] + delays[edge])
            waits_for[after] -= 1
            if not waits_for[after]:
                order.append(after)
    return np.where(np.array(waits_for, np.int64) > 0, np.nan, np.array(at, np.float64))
