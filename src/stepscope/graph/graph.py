"""The dependency graph of training steps: immutable, every edit returns a new graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepscope.arrays import Mask, Times
from stepscope.errors import GraphError
from stepscope.graph.edges import Edges, Topology, topology, with_delays
from stepscope.graph.step_window import Window
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

Schedule = Callable[[list[int], NDArray[np.int64], "Graph"], int]
"""Picks one of the tasks that are ready, given the time at which each could start."""


@dataclass(frozen=True, eq=False)
class Graph:
    """Tasks on threads, and their dependencies (columns in `stepscope.graph.graph_schema`).

    Attributes:
        tasks: sorted by thread, then in the order in which the thread runs them.
        links: dependencies between threads.
        threads: CPU threads, device streams and channels.
        trace: the trace that it was built from, for modules and devices.
        window: the steps that it covers.
        schedule: chooses the next ready task; None for the earliest, then the highest priority.

    Example:
        >>> graph = build_graph(stepscope.open("run.stepscope"))  # doctest: +SKIP
        >>> simulate(graph).step_ns  # doctest: +SKIP

    Source: DAYDREAM section 4.2.
    """

    tasks: Table
    links: Table
    threads: Table
    trace: Trace
    window: Window
    schedule: Schedule | None = None

    def __len__(self) -> int:
        return len(self.tasks)

    def with_tasks(self, **columns: ArrayLike | Text) -> Graph:
        """The graph with some columns of its tasks replaced."""
        changed = replace(self, tasks=self.tasks.with_columns(**columns))
        if "topology" in vars(self) and "thread" not in columns:
            vars(changed)["topology"] = self.topology  # the same tasks wait for the same ones
        return changed

    def with_schedule(self, schedule: Schedule) -> Graph:
        """The graph with another order of ready tasks.

        Source: DAYDREAM section 4.4, "Schedule".
        """
        return replace(self, schedule=schedule)

    @cached_property
    def topology(self) -> Topology:
        """Which tasks wait for which, including the order within threads."""
        return topology(self.tasks, self.links, self.threads)

    @cached_property
    def edges(self) -> Edges:
        """All dependencies with their delays."""
        return with_delays(self.topology, self.tasks, self.links)

    @cached_property
    def start_ns(self) -> Times:
        """When each task starts (see `simulate`), int64, shape (tasks,).

        Raises:
            GraphError: if the graph has a cycle.
        """
        from stepscope.graph.simulate import start_times  # imports this module

        return start_times(self)

    @cached_property
    def on_device(self) -> Mask:
        """Tasks that a device runs, bool, shape (tasks,)."""
        on_device: Mask = (self.threads["device"] >= 0)[self.tasks["thread"]]
        return on_device

    @cached_property
    def of_main_threads(self) -> Mask:
        """Tasks of the threads that run the training loop, bool, shape (tasks,)."""
        of_main: Mask = (self.threads["main"] > 0)[self.tasks["thread"]]
        return of_main

    @cached_property
    def of_communication_threads(self) -> Mask:
        """Tasks of threads and streams that mostly communicate, bool, shape (tasks,)."""
        of_communication: Mask = self.threads.text("kind").mask("communication")
        return of_communication[self.tasks["thread"]]

    def check(self) -> Graph:
        """The graph itself, if it is valid.

        Raises:
            GraphError: if a task has no thread or is out of order, a time is negative, or the
                graph has a cycle.
        """
        thread = self.tasks["thread"]
        if len(thread) and not 0 <= thread.min() <= thread.max() < len(self.threads):
            raise GraphError("a task's thread is not in the graph")
        if (np.diff(thread) < 0).any():
            raise GraphError("the tasks are not sorted by thread")
        for name in ("duration_ns", "gap_ns", "earliest_ns"):
            if (self.tasks[name] < 0).any():
                task = int(np.argmax(self.tasks[name] < 0))
                raise GraphError(f"expected no negative {name}, found {self.tasks[name][task]} "
                                 f"at task {task} ({self.tasks.text('name')[task]})")  # fmt: skip
        _ = self.start_ns  # finds cycles
        return self
