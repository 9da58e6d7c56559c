"""The hot loop of the replay, compiled."""

from __future__ import annotations

import numba
import numpy as np

from stepscope.arrays import Array


@numba.njit(cache=True)
def longest_path(ready: Array, first: Array, target: Array, delay: Array) -> Array:
    """When each node happens: once all nodes before it have, and the delays from them have passed.

    Args:
        ready: the earliest time of each node, float64, shape (nodes,).
        first: where the edges of each node begin, int64, shape (nodes + 1,).
        target: the node at which each edge ends, int64, shape (edges,).
        delay: of each edge, float64, shape (edges,).

    Returns:
        Times, float64, shape (nodes,); nan for nodes that a cycle blocks.
    """
    count = len(ready)
    waits_for = np.zeros(count, np.int64)
    for edge in range(len(target)):
        waits_for[target[edge]] += 1
    at = ready.copy()
    queue, size = np.empty(count, np.int64), 0
    for node in range(count):
        if waits_for[node] == 0:
            queue[size] = node
            size += 1
    done = 0
    while done < size:
        node = queue[done]
        done += 1
        for edge in range(first[node], first[node + 1]):
            after = target[edge]
            at[after] = max(at[after], at[node] + delay[edge])
            waits_for[after] -= 1
            if waits_for[after] == 0:
                queue[size] = after
                size += 1
    for node in range(count):
        if waits_for[node] > 0:
            at[node] = np.nan
    return at
