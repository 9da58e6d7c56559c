"""The dependency graph of a training step: immutable, every change makes a new one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepscope.errors import GraphError
from stepscope.graph.edges import Edges, all_edges
from stepscope.graph.window import Window
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

Schedule = Callable[[list[int], NDArray[np.int64], "Graph"], int]
"""Picks one of the tasks that are ready, given the time at which each could start."""


@dataclass(frozen=True, eq=False)
class Graph:
    """Tasks on threads, and what they wait for (columns in `stepscope.graph.schema`).

    Attributes:
        tasks: thread by thread, in each in the order in which it runs them.
        links: dependencies between threads.
        threads: CPU threads, device streams and channels.
        trace: the trace that it was made of, for modules and devices.
        window: the steps that it is of.
        schedule: which of the ready tasks runs next; None for the earliest, then by priority.

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
        """A graph like this one with some columns of its tasks replaced."""
        return replace(self, tasks=self.tasks.with_columns(**columns))

    def with_schedule(self, schedule: Schedule) -> Graph:
        """A graph like this one whose tasks run in another order where they may.

        Source: DAYDREAM section 4.4, "Schedule".
        """
        return replace(self, schedule=schedule)

    @cached_property
    def edges(self) -> Edges:
        """Every dependency, the order within threads included."""
        return all_edges(self.tasks, self.links, self.threads)

    @cached_property
    def start_ns(self) -> NDArray[np.int64]:
        """When each task starts (see `simulate`), int64, shape (tasks,).

        Raises:
            GraphError: if tasks wait for each other in a circle.
        """
        from stepscope.graph.simulate import start_times  # which needs this module

        return start_times(self)

    @cached_property
    def on_device(self) -> NDArray[np.bool_]:
        """Tasks that a device runs, bool, shape (tasks,)."""
        on_device: NDArray[np.bool_] = (self.threads["device"] >= 0)[self.tasks["thread"]]
        return on_device

    def check(self) -> Graph:
        """The graph itself, if it is sound.

        Raises:
            GraphError: if a task is on no thread or out of its thread's order, a time is negative,
                or tasks wait for each other in a circle.
        """
        thread = self.tasks["thread"]
        if len(thread) and not 0 <= thread.min() <= thread.max() < len(self.threads):
            raise GraphError("expected every task on one of the graph's threads")
        if (np.diff(thread) < 0).any():
            raise GraphError("expected the tasks thread by thread")
        for name in ("duration_ns", "gap_ns", "earliest_ns"):
            if (self.tasks[name] < 0).any():
                task = int(np.argmax(self.tasks[name] < 0))
                raise GraphError(f"expected no negative {name}, found {self.tasks[name][task]} "
                                 f"at task {task} ({self.tasks.text('name')[task]})")  # fmt: skip
        _ = self.start_ns  # finds circles
        return self
