"""From a trace to the dependency graph of a row of its steps."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.annotate.steps import main_track
from stepscope.graph.device import (
    UNKNOWN,
    Work,
    find_work,
    launch_latency,
    previous_ends,
)
from stepscope.graph.edges import COMMUNICATION, HANDOVER, LAUNCH, SYNC
from stepscope.graph.graph import Graph
from stepscope.graph.handover import find_bursts
from stepscope.graph.host import HANDOVER as AT_HANDOVER
from stepscope.graph.host import MARK, RETURN, Cuts, cut_threads, host_events
from stepscope.graph.schema import EDGE_KINDS, LINKS, TASKS, THREADS
from stepscope.graph.stream_waits import find_stream_waits
from stepscope.graph.waits import Waits, find_waits
from stepscope.graph.window import Window, find_window
from stepscope.trace.schema import CATEGORIES
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

Ids = NDArray[np.int64]
Times = NDArray[np.int64]
_OTHER = CATEGORIES.index("other")


def build_graph(
    trace: Trace, rank: int | None = None, steps: tuple[int, int] | None = None
) -> Graph:
    """The dependency graph of some consecutive steps of one rank.

    Args:
        trace: an annotated trace.
        rank: which rank; by default the first.
        steps: the first and the last step; by default the longest row of consecutive ones.

    Returns:
        A graph whose simulation reproduces the steps as they were measured.

    Raises:
        TraceError: if there are no such steps.

    Source: DAYDREAM section 4.2.
    """
    return _Build(trace, find_window(trace, rank, steps)).graph()


class _Build:
    """The parts of one graph, each made of those before it."""

    def __init__(self, trace: Trace, window: Window) -> None:
        self.trace, self.window = trace, window
        self.main = _main_track(trace, window.rank)
        self.rows = host_events(trace, window)
        self.work = find_work(trace, window)
        self.waits = find_waits(trace, self.rows, self.work)
        self.calls, self.until = _until(trace, self.waits, self.work)
        self.bursts = find_bursts(trace, self.rows, self.main)
        self.joined = np.flatnonzero(self.bursts.end_ns >= 0)
        cuts, self.cut_rows = self._cuts()
        self.pieces = cut_threads(trace, self.rows, cuts, window)
        self.call_task, self.called_ns = self._calls()

    def _cuts(self) -> tuple[Cuts, list[slice]]:
        """Cuts for marks, forks (both sides), joins and returns, and where each kind is."""
        marks, bursts = self.window.starts_ns, self.bursts
        here = np.full(max(len(marks), len(bursts.track)), self.main, np.int64)
        parts = (
            (here[: len(marks)], marks, MARK),
            (here[: len(bursts.track)], bursts.start_ns, AT_HANDOVER),
            (bursts.track, bursts.start_ns, AT_HANDOVER),
            (here[: len(self.joined)], bursts.end_ns[self.joined], AT_HANDOVER),
            (self.trace.events["track"][self.calls].astype(np.int64), self.until, RETURN),
        )
        bounds = np.cumsum([0, *(len(part[0]) for part in parts)]).tolist()
        return Cuts.of(*parts), [slice(*pair) for pair in pairwise(bounds)]

    def graph(self) -> Graph:
        """The tasks of host and devices on one list, thread by thread, and the links."""
        host, device = self._host_tasks(), self._device_tasks()
        track = np.concatenate([self.pieces.track, self.work.track])
        columns = {name: np.concatenate([host[name], device[name]]) for name in host}
        order = np.argsort(track, kind="stable")
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        tracks, thread = np.unique(track[order], return_inverse=True)
        tasks = self._table({name: column[order] for name, column in columns.items()}, thread)
        return Graph(tasks, self._links(place), self._threads(tracks), self.trace, self.window)

    def _table(self, columns: dict[str, Any], thread: Ids) -> Table:
        """Tasks with the facts of their events; those of none are named by their mark."""
        events, event = self.trace.events, columns["event"]
        known = event >= 0
        facts: dict[str, Any] = {
            name: np.where(known, events[name][event] if len(events) else -1, -1)
            for name in ("kind", "module", "bytes")
        }
        facts |= {"stage": _fill_back(np.where(known, events["stage"][event], -1), thread)}
        facts |= {"category": np.where(known, events["category"][event], _OTHER)}
        for name in ("kind", "stage", "category"):
            facts[name] = Text(facts[name].astype(np.int8), TASKS.column(name).values)
        facts["name"] = _names(events.text("name"), event, columns["mark"], columns["step"])
        return Table(TASKS, {"thread": thread, **columns, **facts})

    def _host_tasks(self) -> dict[str, Any]:
        pieces, marks = self.pieces, self._cut(0)
        duration, gap = self._without_waiting()
        begins = self.window.starts_ns[0]
        earliest = np.zeros(len(pieces.track), np.int64)
        alone = _first_of(pieces.track) & ~np.isin(pieces.track, [self.main, *self.bursts.track])
        earliest[alone] = pieces.start_ns[alone] - begins
        mark = np.zeros(len(pieces.track), np.int8)
        mark[marks] = 1
        index = np.searchsorted(self.window.starts_ns[:-1], pieces.start_ns, side="right") - 1
        step = np.array(self.window.steps)[np.maximum(index, 0)]
        return {
            "duration_ns": duration,
            "gap_ns": gap,
            "earliest_ns": earliest,
            "event": pieces.owner,
            "mark": mark,
            "step": step,
        }

    def _cut(self, kind: int) -> Ids:
        return self.pieces.of_cut[self.cut_rows[kind]]

    def _without_waiting(self) -> tuple[Times, Times]:
        """Durations and gaps without the time in which a thread only waits for another."""
        pieces = self.pieces
        begins = np.concatenate([pieces.of_event[self.calls], self._cut(1)[self.joined]])
        ends = np.concatenate([self._cut(4), self._cut(3)])
        change = np.zeros(len(pieces.track) + 1, np.int64)
        np.add.at(change, begins, 1)
        np.add.at(change, ends, -1)
        waiting = np.cumsum(change)[:-1] > 0
        gap = np.where(waiting, 0, pieces.gap_ns)
        # Between two bursts their thread sleeps.
        forked = self._cut(2)
        inner = forked[~_first_of(pieces.track)[forked]]
        gap[inner - 1] = 0
        return np.where(waiting, 0, pieces.duration_ns), gap

    def _device_tasks(self) -> dict[str, Any]:
        work = self.work
        alone = (self.call_task < 0) & (work.first | (work.called_ns != UNKNOWN))
        earliest = np.where(alone, work.start_ns - self.window.starts_ns[0], 0)
        gap, self.launch_lag, self.stream_waits = self._device_delays()
        return {
            "duration_ns": work.end_ns - work.start_ns,
            "gap_ns": gap,
            "earliest_ns": earliest,
            "event": work.event,
            "mark": np.zeros(len(work.event), np.int8),
            "step": self.trace.events["step"][work.event],
        }

    def _calls(self) -> tuple[Ids, Times]:
        """The CPU task that launched each piece of work, or -1, and when that began.

        Recorders lose launches. Work without one that found its stream idle is taken to be launched
        by what the loop's or autograd's thread did just before it.
        """
        work, pieces = self.work, self.pieces
        task = np.where(work.call >= 0, pieces.of_event[work.call], -1)
        moment = work.start_ns - launch_latency(work)
        near = np.flatnonzero(np.isin(pieces.track, [self.main, *self.bursts.track]))
        near = near[np.argsort(pieces.start_ns[near], kind="stable")]
        index = np.searchsorted(pieces.start_ns[near], moment, side="right") - 1
        lost = (work.called_ns == UNKNOWN) & (previous_ends(work) < moment) & (index >= 0)
        task[lost] = near[index[lost]]
        return task, np.where(task >= 0, pieces.start_ns[task], work.called_ns)

    def _device_delays(self) -> tuple[Times, Times, tuple[Ids, Ids, Times]]:
        """What was between the last thing that work waited for and its start, on that thing."""
        work, latency = self.work, launch_latency(self.work)
        source, target = find_stream_waits(self.trace, self.rows, work)
        known = self.call_task >= 0
        delay = np.where(known, np.maximum(work.start_ns - self.called_ns, 0), 0)
        launched = np.where(known, self.called_ns + np.minimum(latency, delay), -1)
        previous = previous_ends(work)
        awaited = np.full(len(work.event), -1, np.int64)
        np.maximum.at(awaited, target, work.end_ns[source])
        by_launch = (launched > previous) & (launched > awaited)
        by_stream = (previous >= launched) & (previous >= awaited) & (previous >= 0)
        follows = by_stream & (known | (work.called_ns == UNKNOWN))
        gap = np.where(follows, work.start_ns - previous, 0)
        gap = np.append(gap[1:], 0)[: len(gap)]
        lag = np.where(by_launch, delay, np.minimum(latency, delay))
        binding = (work.end_ns[source] == awaited[target]) & ~(by_launch | by_stream)[target]
        wait_lag = work.start_ns[target] - work.end_ns[source]
        return gap, lag, (source, target, np.where(binding, wait_lag, np.minimum(wait_lag, 0)))

    def _links(self, place: Ids) -> Table:
        """Launches, waits of the CPU, waits of streams, and handing over, in this order."""
        device = len(self.pieces.track)
        called = np.flatnonzero(self.call_task >= 0)
        launch = (self.call_task[called], device + called)
        returns = np.full(len(self.trace.events), -1, np.int64)
        returns[self.calls] = self._cut(4)
        wait = (device + self.waits.work, returns[self.waits.call])
        source, target, wait_lag = self.stream_waits
        fork = (self._cut(1), self._cut(2))
        last = self._awaited()
        join = (last, self._cut(3))
        end = self.pieces.start_ns + self.pieces.duration_ns
        join_lag = self.bursts.end_ns[self.joined] - end[last]
        parts = (
            (*launch, LAUNCH, self.launch_lag[called]),
            (*wait, self._speaks(self.waits.work, SYNC), np.zeros(len(wait[0]), np.int64)),
            (device + source, device + target, self._speaks((source, target), SYNC), wait_lag),
            (*fork, HANDOVER, -self.pieces.duration_ns[fork[0]]),
            (*join, HANDOVER, join_lag),
        )
        kinds = [np.broadcast_to(part[2], len(part[0])).astype(np.int8) for part in parts]
        columns: dict[str, Any] = {
            "source": place[np.concatenate([part[0] for part in parts])],
            "target": place[np.concatenate([part[1] for part in parts])],
            "kind": Text(np.concatenate(kinds), EDGE_KINDS),
            "lag_ns": np.concatenate([part[3] for part in parts]),
        }
        return Table(LINKS, columns)

    def _speaks(self, ends: Any, otherwise: int) -> NDArray[np.int8]:
        """Communication where a collective is at either end."""
        speaks = self.trace.events.text("category").mask("communication")[self.work.event]
        either = np.any([speaks[rows] for rows in ends], axis=0) if isinstance(ends, tuple) \
            else speaks[ends]  # fmt: skip
        return np.where(either, COMMUNICATION, otherwise).astype(np.int8)

    def _awaited(self) -> Ids:
        """The task of each burst at whose end the main thread goes on."""
        track, end = self.bursts.track[self.joined], self.bursts.end_ns[self.joined]
        result = np.zeros(len(track), np.int64)
        for thread in np.unique(track).tolist():
            mine = np.flatnonzero(self.pieces.track == thread)
            asked = track == thread
            index = np.searchsorted(self.pieces.start_ns[mine], end[asked], side="left") - 1
            result[asked] = mine[np.maximum(index, 0)]
        return result

    def _threads(self, tracks: Ids) -> Table:
        table = self.trace["tracks"]
        columns: dict[str, Any] = {
            "kind": table.text("kind").take(tracks),
            "name": table.text("name").take(tracks),
            "track": tracks,
            "device": table["device"][tracks],
            "ordered": np.ones(len(tracks)),
            "main": tracks == self.main,
        }
        return Table(THREADS, columns)


def _main_track(trace: Trace, rank: int) -> int:
    """The training loop's thread of a rank."""
    if len(trace.metadata.ranks) == 1:
        return main_track(trace)
    ranks = trace["tracks"]["rank"][trace.events["track"]]
    own = trace.with_table(trace.events.take(ranks == rank))
    return main_track(own)


def _until(trace: Trace, waits: Waits, work: Work) -> tuple[Ids, Times]:
    """Each waiting call once, and the moment at which it had nothing left to wait for."""
    calls, index = np.unique(waits.call, return_inverse=True)
    start = trace.events["start_ns"][calls]
    until = start.copy()
    np.maximum.at(until, index, work.end_ns[waits.work])
    return calls, np.minimum(until, start + trace.events["duration_ns"][calls])


def _first_of(track: Ids) -> NDArray[np.bool_]:
    return np.append(True, track[1:] != track[:-1])[: len(track)]


def _fill_back(stage: NDArray[Any], thread: Ids) -> NDArray[Any]:
    """Tasks of no event have the stage of the next of their thread that has one."""
    count = len(stage)
    known = np.where(stage >= 0, np.arange(count), count)
    following = np.minimum.accumulate(known[::-1])[::-1] if count else known
    safe = np.minimum(following, max(count - 1, 0))
    same = (following < count) & (thread[safe] == thread)
    return np.where(same, stage[safe], stage)


def _names(names: Text, event: Ids, mark: NDArray[np.int8], step: Ids) -> Text:
    """Names of events; of marks `step 5`; nothing for where one thread hands over to another."""
    numbers = np.unique(step[mark > 0])
    values = [*names.values, "", *(f"step {number}" for number in numbers)]
    own = len(names.values) + 1 + np.searchsorted(numbers, step)
    codes = np.where(event >= 0, names.codes[event], len(names.values))
    return Text(np.where(mark > 0, own, codes).astype(np.int32), values)
