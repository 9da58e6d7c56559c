"""The start of each task in the usual order: compiled, or in Python where that is missing.

`simulate_plainly` is the specification of both.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stepscope.arrays import Times
from stepscope.compiled.build import LIBRARY
from stepscope.compiled.library import function
from stepscope.graph.graph import Graph


class _Columns(NamedTuple):
    """What the simulation needs of a graph, as int64."""

    thread: Times
    occupied: Times
    earliest: Times
    priority: Times
    is_ordered: Times
    first: Times
    target: Times
    delay: Times

    @classmethod
    def of(cls, graph: Graph) -> _Columns:
        edges, tasks = graph.edges, graph.tasks
        columns = (
            tasks["thread"],
            tasks["duration_ns"] + tasks["gap_ns"],
            tasks["earliest_ns"],
            tasks["priority"],
            graph.threads["ordered"] > 0,
            edges.first,
            edges.target,
            edges.delay_ns,
        )
        return cls(*(np.ascontiguousarray(column, np.int64) for column in columns))


def fast_start_times(graph: Graph) -> Times:
    """The start of each task, int64, shape (tasks,), ns; -1 for tasks blocked by a cycle."""
    compiled = compiled_start_times(graph)
    return start_times_in_python(graph) if compiled is None else compiled


def compiled_start_times(graph: Graph, library: Path = LIBRARY) -> Times | None:
    """The same by `native/simulate.cpp`, None where that is missing."""
    simulate = function("stepscope_simulate", library)
    start = np.empty(len(graph), np.int64)
    if simulate and simulate(len(graph), len(graph.threads), *_Columns.of(graph), start):
        return start
    return None


def start_times_in_python(graph: Graph) -> Times:
    """The same as `native/simulate.cpp`, which explains it."""
    columns = _Columns.of(graph)
    thread, occupied, ready_at, priority, _, first, target, delay = map(np.ndarray.tolist, columns)
    is_ordered = (columns.is_ordered[columns.thread] > 0).tolist()
    order = [(-rank, task) for task, rank in enumerate(priority)]
    progress = [0] * len(graph.threads)
    waits_for = np.bincount(columns.target, minlength=len(thread)).tolist()
    start = [-1] * len(thread)
    ready = [task for task, count in enumerate(waits_for) if not count]
    heap = [(ready_at[task], *order[task]) for task in ready if is_ordered[task]]
    loose = [task for task in ready if not is_ordered[task]]
    heapify(heap)
    while heap or loose:
        candidates = ((max(ready_at[task], progress[thread[task]]), *order[task]) for task in loose)
        best = min(candidates, default=None)
        if best is None or (heap and heap[0] < best):
            best = heappop(heap)
        else:
            loose.remove(best[2])
        at, _, task = best
        start[task], progress[thread[task]] = at, at + occupied[task]
        for edge in range(first[task], first[task + 1]):
            after = target[edge]
            ready_at[after] = max(ready_at[after], at + delay[edge])
            waits_for[after] -= 1
            if not waits_for[after]:
                if is_ordered[after]:
                    heappush(heap, (ready_at[after], *order[after]))
                else:
                    loose.append(after)
    return np.array(start, np.int64)
