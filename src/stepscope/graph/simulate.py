"""Run a graph: when does each task start? A fast way, and a readable one that is its meaning."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from stepscope.errors import GraphError
from stepscope.graph.graph import Graph

Times = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Simulation:
    """When each task of `graph` starts: `start_ns`, int64, shape (tasks,), since the window's."""

    graph: Graph
    start_ns: Times

    @cached_property
    def end_ns(self) -> Times:
        """When each task ends, int64, shape (tasks,), ns."""
        return self.start_ns + self.graph.tasks["duration_ns"]

    @property
    def last_end_ns(self) -> int:
        """When the last step has ended, on the CPU and on the devices."""
        counts = self.graph.on_device | (self.graph.tasks["mark"] > 0)
        return int(self.end_ns[counts].max(initial=0))

    @property
    def step_ns(self) -> Times:
        """How long each step lasts: until the next begins, the last until its device work ends.

        Of several ranks it is the mean.
        """
        rank = self.graph.threads["rank"][self.graph.tasks["thread"]]
        marks = self.graph.tasks["mark"] > 0
        counts = self.graph.on_device | marks
        lengths = []
        for one in np.unique(rank[marks]).tolist():
            begins = self.start_ns[marks & (rank == one)]
            last = self.end_ns[counts & (rank == one)].max(initial=0)
            lengths.append(np.diff(np.append(begins[:-1], last)))
        return np.mean(lengths, axis=0).astype(np.int64) if lengths else np.zeros(0, np.int64)


def simulate(graph: Graph) -> Simulation:
    """When each task starts, if each starts as soon as its thread and what it waits for allow.

    Args:
        graph: any graph; with a `schedule` of its own it runs in plain Python, else compiled. A
            graph is simulated once, however often it is asked.

    Raises:
        GraphError: if tasks wait for each other in a circle.

    Source: DAYDREAM algorithm 1.
    """
    return Simulation(graph, graph.start_ns)


def start_times(graph: Graph) -> Times:
    """What `simulate` simulates."""
    return simulate_plainly(graph).start_ns if graph.schedule else _start_fast(graph)


def earliest_first(frontier: list[int], could_start: Times, graph: Graph) -> int:
    """The ready task that could start first; of several the one of highest priority."""
    priority = graph.tasks["priority"]
    return min(frontier, key=lambda task: (could_start[task], -priority[task], task))


def simulate_plainly(graph: Graph) -> Simulation:
    """What `simulate` does, in Python: algorithm 1 line by line."""
    edges, tasks = graph.edges, graph.tasks
    schedule = graph.schedule or earliest_first
    waits_for = np.bincount(edges.target, minlength=len(graph))
    ready_at = tasks["earliest_ns"].copy()
    progress = np.zeros(len(graph.threads), np.int64)
    start = np.full(len(graph), -1, np.int64)
    frontier = np.flatnonzero(waits_for == 0).tolist()
    could_start = ready_at.copy()
    while frontier:
        could_start[frontier] = np.maximum(ready_at[frontier], progress[tasks["thread"][frontier]])
        task = schedule(frontier, could_start, graph)
        frontier.remove(task)
        start[task] = could_start[task]
        progress[tasks["thread"][task]] = (
            start[task] + tasks["duration_ns"][task] + tasks["gap_ns"][task]
        )
        for edge in range(edges.first[task], edges.first[task + 1]):
            after = edges.target[edge]
            ready_at[after] = max(ready_at[after], start[task] + edges.delay_ns[edge])
            waits_for[after] -= 1
            if waits_for[after] == 0:
                frontier.append(int(after))
    return Simulation(graph, _finished(start))


def _start_fast(graph: Graph) -> Times:
    from stepscope.graph.compiled import run  # loads numba

    edges, tasks = graph.edges, graph.tasks
    start: Times = run(
        tasks["thread"],
        tasks["duration_ns"] + tasks["gap_ns"],
        tasks["earliest_ns"],
        tasks["priority"],
        edges.first,
        edges.target,
        edges.delay_ns,
        len(graph.threads),
    )
    return _finished(start)


def _finished(start: Times) -> Times:
    if (start < 0).any():
        raise GraphError(f"expected no circle, found {(start < 0).sum()} tasks in or behind one")
    return start
