"""The dependency graph of training steps: immutable, every edit returns a new graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from threading import Lock
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepscope.base.arrays import Ids, Ids32, IntArray, Mask, Times
from stepscope.errors import GraphError, TraceError
from stepscope.facts.annotate.steps.step_table import (
    missing_steps,
    ranks_with_steps,
    require_steps,
    steady_steps,
)
from stepscope.facts.annotate.steps.windows import unrecorded_work_end
from stepscope.graph.graph_schema import LAUNCH, NO_STEP, Edges, edges_of
from stepscope.trace.columns import gathered
from stepscope.trace.nesting import inherit
from stepscope.trace.row_order import ends_run, grouped
from stepscope.trace.sets import distinct
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

_MAX_GAP = 0.05  # of a step; chosen: steps that are farther apart do not follow each other
_MOST_EVENTS = 1 << 22  # of steps chosen by default: building and changing a graph takes 500 bytes for each
_FEWEST_STEPS = 2  # whatever their size: one step alone counts until its device work ends


@dataclass(frozen=True)
class Window:
    """Consecutive steps of one rank."""

    rank: int  # the rank of the steps
    steps: tuple[int, ...]  # step numbers
    # when each step begins on the CPU, and when the last ends there; int64, shape (steps + 1,)
    starts_ns: Times
    begin_ns: int  # when the work of earlier steps has ended too, and the first step's window begins
    # when each step ends: when the next begins, and, if the first step waits for earlier work, its device
    # work has ended too; the last, when its device work has; int64, shape (steps,)
    ends_ns: Times

    @property
    def end_ns(self) -> int:
        """When the last step's device work has ended too."""
        return int(self.ends_ns[-1])

    @property
    def measured_ns(self) -> Times:
        """Measured length of each step, from the end of the step before it; none is negative."""
        return np.diff([self.begin_ns, *self.ends_ns])

    @property
    def lead_lost_ns(self) -> int:
        """How much less the CPU is ahead of the device at the end than at the beginning."""
        before, after = self.begin_ns - self.starts_ns[0], self.end_ns - self.starts_ns[-1]
        return max(0, int(before - after))

    @property
    def waits_for_earlier_work(self) -> bool:
        """Whether the first step's window begins after the step begins on the CPU."""
        return self.begin_ns > int(self.starts_ns[0])


def find_window(trace: Trace, rank: int | None = None, steps: tuple[int, int] | None = None) -> Window:
    """The window of some steps of a rank, by default its longest run of consecutive steps.

    By default, a first step that warms up, or waits for work that is not recorded, is left out, and of
    a run with over 4 million events all but its last steps. Raises TraceError if a step is missing, the
    steps are not consecutive, or a step has no length.
    """
    require_steps(trace)
    rank = ranks_with_steps(trace)[0] if rank is None else rank
    table = trace["steps"]
    known = table.take(steady_steps(table)) if steps is None else table
    runs = _runs(known.take(known["rank"] == rank))
    if steps is not None:
        inside = (run.take((run["step"] >= steps[0]) & (run["step"] <= steps[1])) for run in runs)
        runs = [run for run in inside if tuple(run["step"][[0, -1]] if len(run) else ()) == steps]
    if not runs:
        raise TraceError(f"{trace.metadata.source}: {missing_steps(trace, rank, *(steps or (None,)))}")
    run = max(runs, key=len)
    if steps is None and len(run) > 1 and run["start_ns"][0] < unrecorded_work_end(trace, rank):
        run = run.take(np.arange(1, len(run)))
    run = run if steps else _last_steps(trace, run)
    starts = np.append(run["start_ns"], run["end_ns"][-1:]).astype(np.int64)
    numbers, begin = tuple(run["step"].tolist()), int(run["window_start_ns"][0])
    window = Window(rank, numbers, starts, begin, _ends(run, starts))
    if not window.measured_ns.all():
        raise TraceError(f"{trace.metadata.source}: a step has no length")
    return window


def _last_steps(trace: Trace, run: Table) -> Table:
    """The last steps of a run that have `_MOST_EVENTS` events of all ranks together, at least two."""
    step = trace.events["step"]
    if len(step) <= _MOST_EVENTS:
        return run
    events = np.cumsum([np.count_nonzero(step == number) for number in run["step"][::-1]])
    last = max(int((events <= _MOST_EVENTS).sum()), _FEWEST_STEPS)
    return run.take(np.arange(len(run))[-last:])


def _ends(run: Table, starts: Times) -> Times:
    worked = np.maximum.accumulate(run["device_end_ns"].astype(np.int64))
    if run["window_start_ns"][0] <= run["start_ns"][0]:
        worked[:-1] = starts[1:-1]  # nothing was queued: the CPU tells the steps apart
    return np.maximum(starts[1:], worked)


def _runs(steps: Table) -> list[Table]:
    """Runs of consecutive steps of a rank; each step lasts until the next begins."""
    start, end = steps.spans()
    far = np.abs(start[1:] - end[:-1]) > _MAX_GAP * (end - start)[1:]
    rows = np.split(np.arange(len(steps)), np.flatnonzero(far) + 1)
    return [steps.take(run) for run in rows if len(run)]


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
        settings: what changes have set for all of its work, such as `half`; later ones follow it.

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
    settings: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self.tasks)

    def with_tasks(self, **columns: ArrayLike | Text) -> Graph:
        """The graph with some columns of its tasks replaced."""
        changed = replace(self, tasks=self.tasks.with_columns(**columns))
        if "links_by_source" in vars(self):  # the same tasks wait for the same ones
            vars(changed)["links_by_source"] = self.links_by_source
        return changed

    def once(self, find: Callable[[Graph], Found]) -> Found:
        """What a function of a module, which depends on the graph alone, finds in it, called once.

        A thread waits for what another one is finding.
        """
        results: dict[Callable[[Graph], Any], Any] = vars(self).setdefault("_found", {})
        locks: dict[Callable[[Graph], Any], Lock] = vars(self).setdefault("_locks", {})
        with locks.setdefault(find, Lock()):
            if find not in results:
                results[find] = find(self)
        return results[find]

    def with_schedule(self, schedule: Schedule) -> Graph:
        """The graph with another order of ready tasks.

        Source: DAYDREAM section 4.4, "Schedule".
        """
        return replace(self, schedule=schedule)

    def having(self, setting: str) -> Graph:
        """The graph with one more setting."""
        return replace(self, settings=self.settings | {setting})

    @cached_property
    def links_by_source(self) -> tuple[IntArray, Ids]:
        """Rows of links by their source, and where those of each task begin (see `grouped`)."""
        return grouped(self.links["source"], len(self))

    @cached_property
    def launches(self) -> Table:
        """The links from calls to the device work that they launch."""
        return self.links.take(self.links["kind"] == LAUNCH)

    @cached_property
    def launched_by(self) -> Ids:
        """The task that launches each task, or -1; int64, shape (tasks,)."""
        caller = np.full(len(self), -1, np.int64)
        caller[self.launches["target"]] = self.launches["source"]
        return caller

    @cached_property
    def edges(self) -> Edges:
        """All dependencies with their delays, including the order within threads."""
        return edges_of(self.tasks, self.links, self.threads)

    @property
    def start_ns(self) -> Times:
        """When each task starts (see `simulate`), shape (tasks,); raises GraphError for a cycle."""
        from stepscope.graph.simulate import start_times  # imports this module

        return self.once(start_times)

    @cached_property
    def on_device(self) -> Mask:
        """Tasks that a device runs, bool, shape (tasks,)."""
        return gathered(self.threads["device"] >= 0, self.tasks["thread"])

    @cached_property
    def of_main_threads(self) -> Mask:
        """Tasks of the threads that run the training loop, bool, shape (tasks,)."""
        return gathered(self.threads["main"] > 0, self.tasks["thread"])

    @property
    def serving_threads(self) -> Mask:
        """The threads of the training loop, and those that it hands work to; shape (threads,)."""
        serving: Mask = self.threads["main"] > 0
        handed = self.links.text("kind").mask("handover", "data")
        serving[self.tasks["thread"][self.links["target"][handed]]] = True
        return serving

    @cached_property
    def ranks(self) -> Ids32:
        """The ranks of its threads, int32, ascending."""
        return distinct(self.threads["rank"])

    def check(self) -> Graph:
        """The graph itself, if it is valid.

        Raises GraphError if a task has no thread or is out of order, a time is negative, or tasks wait
        for each other.
        """
        thread = self.tasks["thread"]
        if len(thread) and not 0 <= thread.min() <= thread.max() < len(self.threads):
            raise GraphError("a task's thread is not in the graph")
        if (np.diff(thread) < 0).any():
            raise GraphError("the tasks are not sorted by thread")
        for name in ("duration_ns", "gap_ns", "earliest_ns"):
            if (self.tasks[name] < 0).any():
                task = int(np.argmax(self.tasks[name] < 0))
                raise GraphError(
                    f"expected no negative {name}, found {self.tasks[name][task]} "
                    f"at task {task} ({self.tasks.text('name')[task]})"
                )
        _ = self.start_ns  # finds cycles
        return self


def inherited(graph: Graph, own: IntArray) -> NDArray[np.int64]:
    """The value of the innermost event around each task, or its launch, from each event's; -1 for none."""
    trace = graph.trace
    inner = inherit(trace.events["parent"], own).astype(np.int64)
    launches = trace["launches"]
    inner[launches["device_event"]] = inner[launches["cpu_event"]]
    return np.append(inner, -1)[graph.tasks["event"]]


def without_unexplained_delays(graph: Graph) -> Graph:
    """The graph without device delays that were measured but not explained.

    A replay keeps unexplained delays as constants: a late start after a launch, a gap between
    kernels. Here they are limited to the median launch latency and the median gap. The error of
    simulating this graph shows how well the known dependencies explain the measured step. Delays of
    earlier steps' work stay: the first step begins after it.
    """
    own = (graph.tasks["step"] == NO_STEP) | (graph.tasks["step"] >= graph.window.steps[0])
    launch = graph.links.text("kind").mask("launch") & own[graph.links["target"]]
    lag = graph.links["lag_ns"].copy()
    if launch.any():
        lag[launch] = np.minimum(lag[launch], int(np.median(lag[launch])))
    gap = graph.tasks["gap_ns"].copy()
    between = own & graph.on_device & ~ends_run(graph.tasks["thread"])
    if between.any():
        gap[between] = np.minimum(gap[between], int(np.median(gap[between])))
    return replace(graph.with_tasks(gap_ns=gap), links=graph.links.with_columns(lag_ns=lag))
