"""The hot loop of the simulation, compiled; `simulate_plainly` says what it means."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@numba.njit(cache=True)
def run(
    thread: Array, occupied_ns: Array, earliest_ns: Array, priority: Array,
    first: Array, target: Array, delay_ns: Array, threads: int,
) -> Array:  # fmt: skip
    """Start of each task, int64, ns; -1 for tasks that wait for each other in a circle.

    The frontier is searched, not sorted: it holds about one task a thread, and what a task could
    start at changes whenever its thread moves on.
    """
    count = len(thread)
    waits_for = np.zeros(count, np.int32)
    for edge in range(len(target)):
        waits_for[target[edge]] += 1
    ready_at = earliest_ns.copy()
    progress = np.zeros(threads, np.int64)
    start = np.full(count, -1, np.int64)
    frontier = np.empty(count, np.int32)
    size = 0
    for task in range(count):
        if waits_for[task] == 0:
            frontier[size] = task
            size += 1
    while size:
        best = 0
        best_at = np.int64(-1)
        for place in range(size):
            task = frontier[place]
            at = max(ready_at[task], progress[thread[task]])
            chosen = frontier[best]
            if (
                best_at < 0
                or at < best_at
                or (at == best_at and priority[task] > priority[chosen])
                or (at == best_at and priority[task] == priority[chosen] and task < chosen)
            ):
                best, best_at = place, at
        task = frontier[best]
        size -= 1
        frontier[best] = frontier[size]
        start[task] = best_at
        progress[thread[task]] = best_at + occupied_ns[task]
        for edge in range(first[task], first[task + 1]):
            after = target[edge]
            ready_at[after] = max(ready_at[after], best_at + delay_ns[edge])
            waits_for[after] -= 1
            if waits_for[after] == 0:
                frontier[size] = after
                size += 1
    return start
