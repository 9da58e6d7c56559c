"""The hot loop of the simulation, compiled; `simulate_plainly` is its specification."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from stepscope.arrays import Array


@numba.njit(cache=True)
def _before(at: Any, priority: Any, task: Any, other_at: Any, other_priority: Any, other: Any,
            ) -> bool:  # fmt: skip
    """Whether a task comes first: earlier start, then higher priority, then lower id."""
    if at != other_at:
        return bool(at < other_at)
    if priority != other_priority:
        return bool(priority > other_priority)
    return bool(task < other)


@numba.njit(cache=True)
def _push(heap: Array, size: int, task: int, at: Array, priority: Array) -> int:
    """Add a task to a heap; return the new size."""
    place = size
    while place:
        above = (place - 1) // 2
        other = heap[above]
        if not _before(at[task], priority[task], task, at[other], priority[other], other):
            break
        heap[place] = other
        place = above
    heap[place] = task
    return size + 1


@numba.njit(cache=True)
def _pop(heap: Array, size: int, at: Array, priority: Array) -> int:
    """Remove the first task of a heap; return the new size."""
    size -= 1
    task, place = heap[size], 0
    while 2 * place + 1 < size:
        below = 2 * place + 1
        if below + 1 < size:
            left, right = heap[below], heap[below + 1]
            if _before(at[right], priority[right], right, at[left], priority[left], left):
                below += 1
        other = heap[below]
        if not _before(at[other], priority[other], other, at[task], priority[task], task):
            break
        heap[place] = other
        place = below
    heap[place] = task
    return size


@numba.njit(cache=True)
def run(
    thread: Array, occupied_ns: Array, earliest_ns: Array, priority: Array, ordered: Array,
    first: Array, target: Array, delay_ns: Array, threads: int,
) -> Array:  # fmt: skip
    """The start of each task, int64, ns; -1 for tasks blocked by a cycle.

    A ready task on an ordered thread cannot be delayed any more, so these tasks are in a heap, and
    the time per task is logarithmic in the number of threads. Ready tasks of other threads change
    their order whenever their thread advances; they are few, and searched linearly.

    It is one function because Numba runs it twice as fast as with the loop's parts in helpers.
    """
    count = len(thread)
    waits_for = np.zeros(count, np.int32)
    for edge in range(len(target)):
        waits_for[target[edge]] += 1
    ready_at = earliest_ns.copy()
    progress = np.zeros(threads, np.int64)
    start = np.full(count, -1, np.int64)
    heap, heaped = np.empty(count, np.int32), 0
    loose, loosened = np.empty(count, np.int32), 0
    for task in range(count):
        if waits_for[task] == 0:
            if ordered[thread[task]]:
                heaped = _push(heap, heaped, task, ready_at, priority)
            else:
                loose[loosened] = task
                loosened += 1
    while heaped or loosened:
        place, best, best_at = -1, -1, np.int64(0)
        if heaped:
            best, best_at = heap[0], ready_at[heap[0]]
        for other in range(loosened):
            task = loose[other]
            at = max(ready_at[task], progress[thread[task]])
            if best < 0 or _before(at, priority[task], task, best_at, priority[best], best):
                place, best, best_at = other, task, at
        if place < 0:
            heaped = _pop(heap, heaped, ready_at, priority)
        else:
            loosened -= 1
            loose[place] = loose[loosened]
        start[best] = best_at
        progress[thread[best]] = best_at + occupied_ns[best]
        for edge in range(first[best], first[best + 1]):
            after = target[edge]
            ready_at[after] = max(ready_at[after], best_at + delay_ns[edge])
            waits_for[after] -= 1
            if waits_for[after] == 0:
                if ordered[thread[after]]:
                    heaped = _push(heap, heaped, after, ready_at, priority)
                else:
                    loose[loosened] = after
                    loosened += 1
    return start
