"""The start of each task in the usual order: compiled, or in Python where that is missing.

`simulate_plainly` is the specification of both.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from pathlib import Path

import numpy as np

from stepscope.arrays import Array, Times
from stepscope.compiled.build import LIBRARY
from stepscope.compiled.library import function
from stepscope.graph.edges import LAUNCH
from stepscope.graph.graph import Graph


def fast_start_times(graph: Graph) -> Times:
    """The start of each task, int64, shape (tasks,), ns; -1 for tasks blocked by a cycle."""
    compiled = compiled_start_times(graph)
    return start_times_in_python(graph) if compiled is None else compiled


def compiled_start_times(graph: Graph, library: Path = LIBRARY) -> Times | None:
    """The same by `native/simulate.cpp`, None where that is missing."""
    simulate = function("stepscope_simulate", library)
    if simulate is None:
        return None
    start = np.empty(len(graph), np.int64)
    return start if simulate(*library_arguments(graph), start) else None


def library_arguments(graph: Graph) -> list[Array | int]:
    """A graph as the functions of `native/simulate.cpp` take it."""
    sizes = len(graph), len(graph.threads), len(graph.links)
    return [*sizes, *_of_tasks(graph), *_of_links(graph), LAUNCH]


def _of_tasks(graph: Graph) -> list[Array]:
    """The columns of tasks and threads that the library reads."""
    tasks = graph.tasks
    columns = (
        (tasks["thread"], np.int32),
        (tasks["duration_ns"], np.int64),
        (tasks["gap_ns"], np.int64),
        (tasks["earliest_ns"], np.int64),
        (tasks["priority"], np.int32),
        (graph.threads["ordered"], np.int8),
    )
    return [np.ascontiguousarray(column, kind) for column, kind in columns]


def _of_links(graph: Graph) -> list[Array]:
    """The columns of links that the library reads, and their rows by source."""
    links = graph.links
    rows, first = graph.links_by_source
    columns = (
        (first, np.int64),
        (rows, np.int32),
        (links["target"], np.int32),
        (links["kind"], np.int8),
        (links["lag_ns"], np.int64),
    )
    return [np.ascontiguousarray(column, kind) for column, kind in columns]


def start_times_in_python(graph: Graph) -> Times:
    """The same as `native/simulate.cpp`, which explains it."""
    edges, tasks = graph.edges, graph.tasks
    ordered = (graph.threads["ordered"] > 0)[tasks["thread"]]
    occupied = (tasks["duration_ns"] + tasks["gap_ns"]).tolist()
    thread, ready_at, priority, is_ordered, first, target, delay = (
        column.tolist()
        for column in (
            tasks["thread"], tasks["earliest_ns"], tasks["priority"], ordered,
            edges.first, edges.target, edges.delay_ns,
        )
    )  # fmt: skip
    order = [(-rank, task) for task, rank in enumerate(priority)]
    progress = [0] * len(graph.threads)
    waits_for = np.bincount(edges.target, minlength=len(thread)).tolist()
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
