"""The dependency graph of training steps: immutable, every edit returns a new graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from threading import Lock
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepscope.arrays import Ids, Ids32, IntArray, Mask, Times
from stepscope.errors import GraphError
from stepscope.graph.edges import Edges, Topology, topology, with_delays
from stepscope.graph.step_window import Window
from stepscope.trace.columns import gathered
from stepscope.trace.row_order import grouped
from stepscope.trace.sets import distinct
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

Found = TypeVar("Found")
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
        known = ("links_by_source",) if "thread" in columns else ("links_by_source", "topology")
        for name in vars(self).keys() & set(known):  # the same tasks wait for the same ones
            vars(changed)[name] = vars(self)[name]
        return changed

    def once(self, find: Callable[[Graph], Found]) -> Found:
        """What a function finds in the graph; it is called once as long as the graph lives.

        A thread waits for what another one is finding.

        Args:
            find: a function of a module, which depends on the graph alone.
        """
        known: dict[Callable[[Graph], Any], Any] = vars(self).setdefault("_found", {})
        locks: dict[Callable[[Graph], Any], Lock] = vars(self).setdefault("_locks", {})
        with locks.setdefault(find, Lock()):
            if find not in known:
                known[find] = find(self)
        found: Found = known[find]
        return found

    def with_schedule(self, schedule: Schedule) -> Graph:
        """The graph with another order of ready tasks.

        Source: DAYDREAM section 4.4, "Schedule".
        """
        return replace(self, schedule=schedule)

    @cached_property
    def links_by_source(self) -> tuple[IntArray, Ids]:
        """Rows of links by their source, and where those of each task begin (see `grouped`)."""
        return grouped(self.links["source"], len(self))

    @cached_property
    def topology(self) -> Topology:
        """Which tasks wait for which, including the order within threads."""
        return topology(self.tasks, self.links, self.threads)

    @cached_property
    def edges(self) -> Edges:
        """All dependencies with their delays."""
        return with_delays(self.topology, self.tasks, self.links)

    @property
    def start_ns(self) -> Times:
        """When each task starts (see `simulate`), int64, shape (tasks,).

        It is found once. Until Python 3.12 a `cached_property` lets one thread at a time find it,
        of all graphs.

        Raises:
            GraphError: if the graph has a cycle.
        """
        from stepscope.graph.simulate import start_times  # imports this module

        known = vars(self)
        if "_start_ns" not in known:
            known["_start_ns"] = start_times(self)
        found: Times = known["_start_ns"]
        return found

    @cached_property
    def on_device(self) -> Mask:
        """Tasks that a device runs, bool, shape (tasks,)."""
        return gathered(self.threads["device"] >= 0, self.tasks["thread"])

    @cached_property
    def of_main_threads(self) -> Mask:
        """Tasks of the threads that run the training loop, bool, shape (tasks,)."""
        return gathered(self.threads["main"] > 0, self.tasks["thread"])

    @cached_property
    def of_communication_threads(self) -> Mask:
        """Tasks of threads and streams that mostly communicate, bool, shape (tasks,)."""
        return gathered(self.threads.text("kind").mask("communication"), self.tasks["thread"])

    @cached_property
    def ranks(self) -> Ids32:
        """The ranks of its threads, int32, ascending."""
        return distinct(self.threads["rank"])

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
