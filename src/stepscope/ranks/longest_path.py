"""When each node of a graph happens: compiled, or in Python where that is missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from stepscope.arrays import Floats, Ids
from stepscope.compiled.build import LIBRARY
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
    compiled = compiled_longest_path(ready, first, target, delay)
    return longest_path_in_python(ready, first, target, delay) if compiled is None else compiled


def compiled_longest_path(
    ready: Floats, first: Ids, target: Ids, delay: Floats, library: Path = LIBRARY
) -> Floats | None:
    """The same by `native/longest_path.cpp`, None where that is missing."""
    path = function("stepscope_longest_path", library)
    at = np.array(ready, np.float64)
    first, target = np.ascontiguousarray(first, np.int64), np.ascontiguousarray(target, np.int64)
    done = path and path(len(at), first, target, np.ascontiguousarray(delay, np.float64), at)
    return at if done else None


def longest_path_in_python(ready: Floats, first: Ids, target: Ids, delay: Floats) -> Floats:
    """The same."""
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
