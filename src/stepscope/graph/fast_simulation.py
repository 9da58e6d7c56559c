"""The start of each task in the usual order, compiled; `simulate_plainly` is the specification."""

from __future__ import annotations

import numpy as np

from stepscope.arrays import Array, Times
from stepscope.compiled.library import function
from stepscope.graph.edges import LAUNCH
from stepscope.graph.graph import Graph


def fast_start_times(graph: Graph) -> Times:
    """The start of each task, int64, shape (tasks,), ns; -1 for tasks blocked by a cycle."""
    start = np.empty(len(graph), np.int64)
    if not function("stepscope_simulate")(*library_arguments(graph), start):
        raise MemoryError(f"too little memory to simulate {len(graph)} tasks")
    return start


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
