"""The simulation of a graph: compiled, and in plain Python as its specification."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.base.arrays import Array, Mask, Times
from stepscope.base.compiled.library import function
from stepscope.errors import GraphError
from stepscope.graph.graph import Graph
from stepscope.graph.graph_schema import LAUNCH, NO_STEP
from stepscope.trace.columns import gathered


@dataclass(frozen=True, eq=False)
class Simulation:
    """The start of each task of `graph`: `start_ns`, int64, shape (tasks,), since the window."""

    graph: Graph
    start_ns: Times

    @cached_property
    def end_ns(self) -> Times:
        """When each task ends, int64, shape (tasks,), ns."""
        return self.start_ns + self.graph.tasks["duration_ns"]

    @cached_property
    def earlier_end_ns(self) -> Times:
        """When the device work of earlier steps has ended, by rank, int64, shape (ranks,), ns."""
        tasks, window = self.graph.tasks, self.graph.window
        if not window.waits_for_earlier_work:
            return self._last_ends(np.zeros(len(tasks), np.bool_))
        earlier = self.graph.on_device & (tasks["step"] != NO_STEP) & (tasks["step"] < window.steps[0])
        if not earlier.any():  # it is not recorded: the first work waited for it
            return self._first_starts()
        return self._last_ends(earlier)

    @cached_property
    def step_ns(self) -> Times:
        """The length of each step: until the next begins, or its device work ends (last step).

        The first begins when the work of earlier steps has ended too; if it waits for that, so does each
        other step (see `Window.ends_ns`). Steps together take no less than the CPU takes for them: a device
        that is faster than the CPU soon has no work queued. With several ranks, the mean over the ranks.
        """
        tasks = self.graph.tasks
        is_mark = tasks["mark"] > 0
        marked = np.flatnonzero(is_mark)
        if not len(marked):
            return np.zeros(0, np.int64)
        last = self._last_ends(self.graph.on_device | is_mark)
        rank = self.graph.threads["rank"][tasks["thread"][marked]]
        ranks, place = np.unique(rank, return_inverse=True)
        begins = self.start_ns[marked[np.argsort(place, kind="stable")]].reshape(len(ranks), -1)
        on_cpu = self._on_cpu(begins)
        begins[:, 0] = np.maximum(begins[:, 0], self.earlier_end_ns[ranks])
        last = np.maximum(last[ranks], begins[:, 0] + on_cpu)
        ends = np.append(np.minimum(self._inner_ends(begins), last[:, None]), last[:, None], axis=1)
        return np.mean(np.diff(ends, axis=1, prepend=begins[:, :1]), axis=0).astype(np.int64)

    def _inner_ends(self, begins: Times) -> Times:
        """When each step but the last ends, by rank: when the next begins and, if the first waits
        for earlier work, the device work until then has ended, too."""
        graph, tasks = self.graph, self.graph.tasks
        if not graph.window.waits_for_earlier_work:
            return begins[:, 1:-1]
        here = graph.on_device & (tasks["step"] >= 0) & (tasks["step"] <= graph.window.steps[-1])
        rank = np.searchsorted(graph.ranks, graph.threads["rank"][tasks["thread"][here]])
        step = np.searchsorted(graph.window.steps, tasks["step"][here])
        worked = np.repeat(begins[:, :1], begins.shape[1] - 1, axis=1)
        np.maximum.at(worked, (rank, step), self.end_ns[here])
        return np.maximum(begins[:, 1:-1], np.maximum.accumulate(worked, axis=1)[:, :-1])

    def _on_cpu(self, begins: Times) -> Times:
        """What the CPU takes for all steps, by rank, if it takes for each what its last one works.

        In earlier steps it may also wait for work of the steps before.
        """
        graph, tasks = self.graph, self.graph.tasks
        here = (graph.serving_threads & (graph.threads["device"] < 0))[tasks["thread"]]
        here &= tasks["step"] == graph.window.steps[-1]
        rank = graph.threads["rank"][tasks["thread"][here]]
        spent = (tasks["duration_ns"] + tasks["gap_ns"])[here]
        pace = np.bincount(rank, spent, int(graph.ranks.max(initial=0)) + 1)[graph.ranks]
        lengths = np.diff(begins, axis=1)
        most = np.minimum(lengths.sum(axis=1), pace * lengths.shape[1])
        return most.astype(np.int64) - graph.window.lead_lost_ns

    def _first_starts(self) -> Times:
        graph, starts = self.graph, self.start_ns[self.graph.on_device]
        last = self._last_ends(graph.on_device | (graph.tasks["mark"] > 0)).max()
        first = np.full(int(graph.ranks.max(initial=0)) + 1, last)
        rank = gathered(graph.threads["rank"], graph.tasks["thread"])
        np.minimum.at(first, rank[graph.on_device], starts)
        return first

    def _last_ends(self, counted: Mask) -> Times:
        """The last end among some tasks, by rank, 0 where there is none."""
        graph, ends = self.graph, self.end_ns[counted]
        last = np.zeros(int(graph.ranks.max(initial=0)) + 1, np.int64)
        if len(graph.ranks) == 1:
            last[graph.ranks] = ends.max(initial=0)
        else:
            rank = gathered(graph.threads["rank"], graph.tasks["thread"])
            np.maximum.at(last, rank[counted], ends)
        return last


def simulate(graph: Graph) -> Simulation:
    """Start each task as soon as its thread and its dependencies allow; raises GraphError for a cycle.

    With a `schedule`, it runs in plain Python, else compiled. The result is cached in the graph.

    Source: DAYDREAM algorithm 1.
    """
    return Simulation(graph, graph.start_ns)


def start_times(graph: Graph) -> Times:
    if graph.schedule:
        return simulate_plainly(graph).start_ns
    return _finished(graph, compiled_start_times(graph))


def earliest_first(frontier: list[int], could_start: Times, graph: Graph) -> int:
    """The ready task that can start first; among several, the one with the highest priority."""
    priority = graph.tasks["priority"]
    return min(frontier, key=lambda task: (could_start[task], -priority[task], task))


def simulate_plainly(graph: Graph) -> Simulation:
    """The same as `simulate`, in Python: algorithm 1 line by line."""
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
        progress[tasks["thread"][task]] = start[task] + tasks["duration_ns"][task] + tasks["gap_ns"][task]
        for edge in range(edges.first[task], edges.first[task + 1]):
            after = edges.target[edge]
            ready_at[after] = max(ready_at[after], start[task] + edges.delay_ns[edge])
            waits_for[after] -= 1
            if waits_for[after] == 0:
                frontier.append(int(after))
    return Simulation(graph, _finished(graph, start))


def _finished(graph: Graph, start: Times) -> Times:
    if (start < 0).any():
        blocked = start < 0
        names = " waits for ".join(_cycle(graph, blocked))
        raise GraphError(f"the dependency graph has a cycle: {names} ({blocked.sum()} tasks blocked)")
    return start


_SHOWN = 4  # tasks of a cycle; chosen: the error stays one line
_LONGEST = 40  # characters of a task's name in it; chosen as well


def _cycle(graph: Graph, blocked: Mask) -> list[str]:
    """The tasks of a cycle, each of which waits for the next; of long cycles the first few."""
    edges = graph.edges
    waits = blocked[edges.source] & blocked[edges.target]
    awaited = np.full(len(graph), -1, np.int64)
    awaited[edges.target[waits]] = edges.source[waits]
    task, place = int(np.argmax(blocked)), dict[int, int]()
    while task not in place:  # each blocked task waits for one that is blocked, too
        place[task] = len(place)
        task = int(awaited[task])
    cycle = [*list(place)[place[task] :], task]
    names = [graph.tasks.text("name")[one] or graph.tasks.text("stage")[one] or "" for one in cycle]
    short = [name if len(name) <= _LONGEST else f"{name[:_LONGEST]}…" for name in names]
    pairs = zip(short, cycle, strict=True)
    named = [f"{name} (task {number})" if name else f"task {number}" for name, number in pairs]
    return named if len(named) <= _SHOWN + 1 else [*named[:_SHOWN], "…", named[-1]]


def compiled_start_times(graph: Graph) -> Times:
    """The same by `native/simulate.cpp`, -1 for blocked tasks."""
    start = np.empty(len(graph), np.int64)
    if not function("stepscope_simulate")(*library_arguments(graph), start):
        raise MemoryError(f"too little memory to simulate {len(graph)} tasks")
    return start


def library_arguments(graph: Graph) -> list[Array | int]:
    """A graph as the functions of `native/simulate.cpp` take it."""
    tasks, links, (rows, first) = graph.tasks, graph.links, graph.links_by_source
    columns = (
        (tasks["thread"], np.int32),
        (tasks["duration_ns"], np.int64),
        (tasks["gap_ns"], np.int64),
        (tasks["earliest_ns"], np.int64),
        (tasks["priority"], np.int32),
        (graph.threads["ordered"], np.int8),
        (first, np.int64),
        (rows, np.int32),
        (links["target"], np.int32),
        (links["kind"], np.int8),
        (links["lag_ns"], np.int64),
    )
    arrays = (np.ascontiguousarray(column, kind) for column, kind in columns)
    return [len(tasks), len(graph.threads), len(links), *arrays, LAUNCH]
