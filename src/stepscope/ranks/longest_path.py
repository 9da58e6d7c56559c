"""When each node of a graph happens."""

from __future__ import annotations

import numpy as np

from stepscope.arrays import Floats, Ids
from stepscope.compiled.library import function


def longest_path(ready: Floats, first: Ids, target: Ids, delay: Floats) -> Floats:
    """When each node happens: once all nodes before it have, and the delays from them have passed.

    Args:
        ready: the earliest time of each node, float64, shape (nodes,).
        first: where the edges of each node begin, int64, shape (nodes + 1,).
        target: the node at which each edge ends, int64, shape (edges,).
        delay: of each edge, float64, shape (edges,).

    Returns:
        Times, float64, shape (nodes,); nan for nodes that a cycle blocks.

    Example:
        >>> longest_path(np.zeros(2), np.array([0, 1, 1]), np.array([1]), np.array([5.0])).tolist()
        [0.0, 5.0]
    """
    at = np.array(ready, np.float64)
    edges = (np.ascontiguousarray(column, np.int64) for column in (first, target))
    delays = np.ascontiguousarray(delay, np.float64)
    if not function("stepscope_longest_path")(len(at), *edges, delays, at):
        raise MemoryError(f"too little memory for the times of {len(at)} nodes")
    return at
