"""Several ranks in one graph: a collective starts for all of them when the last one arrives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from stepscope.annotate.collectives import collective_key
from stepscope.annotate.steps import ranks_with_steps
from stepscope.errors import TraceError
from stepscope.graph.build import build_graph
from stepscope.graph.graph import Graph
from stepscope.graph.insert import add_links, add_thread, append, insert, numbers_after
from stepscope.graph.window import Window
from stepscope.trace.stack import stacked
from stepscope.trace.trace import Trace

Ids = NDArray[np.int64]
Times = NDArray[np.int64]


def build_ranks(
    trace: Trace, ranks: Sequence[int] | None = None, steps: tuple[int, int] | None = None
) -> Graph:
    """The dependency graph of the same steps of several ranks, tied by their collectives.

    The n-th collective of a kind on a process group is the same on every rank. Each rank arrives at
    it when it did without the others; it begins for all when the last one has arrived, and then
    takes what it took from then on.

    Args:
        trace: an annotated trace of several ranks.
        ranks: which; by default all that have steps.
        steps: the first and the last step; by default the longest row of the first rank.

    Raises:
        TraceError: if a rank does not have these steps.
    """
    ranks = list(ranks_with_steps(trace) if ranks is None else ranks)
    first = build_graph(trace, ranks[0], steps)
    span = steps or (first.window.steps[0], first.window.steps[-1])
    graphs = [first, *(build_graph(trace, rank, span) for rank in ranks[1:])]
    if len({graph.window.steps for graph in graphs}) > 1:
        raise TraceError(f"{trace.metadata.source}: expected the same steps on every rank")
    return _with_meetings(_side_by_side(graphs)) if len(graphs) > 1 else first


def _side_by_side(graphs: Sequence[Graph]) -> Graph:
    """The graphs as one, each begun when it did; a collective's task keeps its measured times."""
    begins = [_begin(graph) for graph in graphs]
    threads = accumulate((len(graph.threads) for graph in graphs[:-1]), initial=0)
    tasks = accumulate((len(graph) for graph in graphs[:-1]), initial=0)
    offsets = [
        {"threads": thread, "tasks": task} for thread, task in zip(threads, tasks, strict=True)
    ]
    started = [
        graph.tasks.with_columns(earliest_ns=graph.tasks["earliest_ns"] + (begin - min(begins)))
        for graph, begin in zip(graphs, begins, strict=True)
    ]
    return Graph(
        stacked(started, offsets),
        stacked([graph.links for graph in graphs], offsets),
        stacked([graph.threads for graph in graphs]),
        graphs[0].trace,
        _mean_window([graph.window for graph in graphs]),
    )


def _begin(graph: Graph) -> int:
    """When a rank's first step begins; 0 where the ranks' clocks cannot be compared."""
    apart = graph.trace["warnings"].text("code").mask("clocks_apart").any()
    return 0 if apart else int(graph.window.starts_ns[0])


def _mean_window(windows: Sequence[Window]) -> Window:
    """Steps that last as long as those of the ranks in the mean."""
    lengths = np.mean([window.measured_ns for window in windows], axis=0)
    starts = np.rint(np.concatenate([[0.0], np.cumsum(lengths)])).astype(np.int64)
    return Window(-1, windows[0].steps, starts, int(starts[-1]))


def _with_meetings(graph: Graph) -> Graph:
    """The graph with an arrival in front of each collective, which waits for those of all."""
    meetings = [group for group in _same_collectives(graph) if len(group) > 1]
    if not meetings:
        return graph
    start = _measured_starts(graph)
    length = graph.tasks["duration_ns"].copy()
    for group in meetings:
        length[group] = _transfer(graph, start[group], length[group])
    graph = graph.with_tasks(duration_ns=length)
    members = np.concatenate(meetings)
    meeting = np.repeat(np.arange(len(meetings)), [len(group) for group in meetings])
    graph, arrivals = insert(
        graph, members, ["arrival"] * len(members), in_front=True, duration_ns=0, category="other",
        kind="other",
    )  # fmt: skip
    members = numbers_after(len(graph), arrivals)[members]
    graph = _launched_in_front(graph, members, arrivals)
    graph, place = add_thread(graph, "meetings", "communication", -1, ordered=False)
    graph, hubs = append(graph, place, ["all arrived"] * len(meetings))
    graph = add_links(graph, arrivals, hubs[meeting], "communication")
    return add_links(graph, hubs[meeting], members, "communication")


def _launched_in_front(graph: Graph, members: Ids, arrivals: Ids) -> Graph:
    """A rank arrives no earlier than the launch of its collective."""
    moved = np.arange(len(graph))
    moved[members] = arrivals
    return replace(graph, links=graph.links.with_columns(target=moved[graph.links["target"]]))


def _transfer(graph: Graph, start: Times, length: Times) -> Times:
    """How long each rank's part takes once all have arrived.

    It is from the last start to its own end; without a common clock, what the last one took.
    """
    apart = graph.trace["warnings"].text("code").mask("clocks_apart").any()
    if apart:
        return np.full(len(length), length.min())
    part: Times = np.maximum(start + length - start.max(), 0)
    return part


def _measured_starts(graph: Graph) -> Times:
    start: Times = np.append(graph.trace.events["start_ns"], 0)[graph.tasks["event"]]
    return start


def _same_collectives(graph: Graph) -> Iterator[Ids]:
    """Tasks of the ranks that are one collective; none of a kind that ranks do not all have."""
    speaks = graph.on_device & graph.tasks.text("category").mask("communication")
    rows = np.flatnonzero(speaks & (graph.tasks["event"] >= 0))
    rows = rows[np.argsort(_measured_starts(graph)[rows], kind="stable")]
    rank = graph.threads["rank"][graph.tasks["thread"][rows]]
    keys: dict[tuple[str, ...], dict[int, list[int]]] = {}
    for row, one in zip(rows.tolist(), rank.tolist(), strict=True):
        keys.setdefault(_key(graph, row), {}).setdefault(one, []).append(row)
    for of_ranks in keys.values():
        lists = list(of_ranks.values())
        if len({len(tasks) for tasks in lists}) == 1:
            yield from (np.array(same, np.int64) for same in zip(*lists, strict=True))


def _key(graph: Graph, task: int) -> tuple[str, ...]:
    """The kind of a collective and its process group, as far as they are told."""
    arguments = graph.trace.event_arguments(int(graph.tasks["event"][task]))
    return collective_key(str(graph.tasks.text("name")[task]), arguments)
