"""New device work: kernels with the calls that launch them, and work that was not listed.

A launch of a CUDA graph starts many kernels, of which a file may list few or none; the stream then
seems idle without a reason. The time between two listed operations is taken to be the graph's work
if one of them belongs to the graph, or if the graph was launched between their launches.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from stepscope.base.arrays import Ids
from stepscope.graph.graph import Graph
from stepscope.graph.graph_schema import LAUNCH, SYNC
from stepscope.graph.primitives import add_links, insert, numbers_after
from stepscope.trace.row_order import ends_run


def insert_device_work(
    graph: Graph,
    calls: ArrayLike,
    works: ArrayLike,
    names: Sequence[str],
    duration_ns: ArrayLike,
    **columns: Any,
) -> tuple[Graph, Ids]:
    """The graph with new kernels after device tasks, and their launches after CPU tasks.

    A launch has the median duration and latency of the graph's launches. CPU calls that waited for
    a kernel wait for the new kernel after it.

    Args:
        calls: CPU tasks after which the launches are inserted, shape (n,).
        works: device tasks after which the kernels are inserted, shape (n,).
        names: names of the kernels.
        duration_ns: durations of the kernels.
        columns: further columns of the kernels and their launches.

    Returns:
        The graph, and the ids of the new kernels in it.
    """
    calls, works = np.atleast_1d(calls), np.atleast_1d(works)
    count = len(works)
    call_ns, lag_ns = typical_launch(graph)
    times = np.concatenate([np.full(count, call_ns), np.broadcast_to(duration_ns, count)])
    labels = ["launch"] * count + list(names)
    graph, new = insert(graph, np.concatenate([calls, works]), labels, duration_ns=times, **columns)
    call, work = new[:count], new[count:]
    graph = _waited_for(graph, work)
    return add_links(graph, call, work, "launch", lag_ns), work


def typical_launch(graph: Graph) -> tuple[int, int]:
    """The median duration of a launch call, and the median time from its start to its work, ns.

    Both are 0 without launches.
    """
    launches = graph.links.take(graph.links["kind"] == LAUNCH)
    if not len(launches):
        return 0, 0
    length = graph.tasks["duration_ns"][launches["source"]]
    return int(np.median(length)), int(np.median(launches["lag_ns"]))


def _waited_for(graph: Graph, work: Ids) -> Graph:
    """Make CPU calls that waited for the predecessor of a new task wait for the new task.

    After several new tasks in a row, they wait for the last.
    """
    new = np.zeros(len(graph) + 1, np.bool_)
    new[work] = True
    last = np.maximum.accumulate(np.where(new[:-1], -1, np.arange(len(graph))))
    successor = np.arange(len(graph))
    ends = work[~new[work + 1]]
    successor[last[ends]] = ends
    links = graph.links
    waits = (links["kind"] == SYNC) & ~graph.on_device[links["target"]]
    moved = np.where(waits, successor[links["source"]], links["source"])
    return replace(graph, links=links.with_columns(source=moved))


NAME = "work of a CUDA graph, not listed"
_GRAPH_LAUNCH = re.compile(r"^(cuda|hip|cu)GraphLaunch")


def with_unlisted_work(graph: Graph) -> Graph:
    """The graph with tasks for work of graph launches that is not listed.

    Such a task lasts from its earliest start, after its launch and the stream's previous work, to
    the next work on the stream, if that is longer than a launch. The replay is unchanged.
    """
    calls = _graph_launches(graph)
    if not len(calls):
        return graph
    gap = graph.tasks["gap_ns"].copy()
    before = np.flatnonzero(graph.on_device & (gap > 0) & ~ends_run(graph.tasks["thread"]))
    call = _launch_between(graph, calls, before)
    before, call = before[call >= 0], call[call >= 0]
    _, lag = typical_launch(graph)
    start, end = graph.start_ns, graph.start_ns + graph.tasks["duration_ns"]
    begin = np.maximum(end[before], start[call] + lag)
    length = start[np.minimum(before + 1, len(graph) - 1)] - begin
    lasts = length > lag
    if not lasts.any():
        return graph
    before, call = before[lasts], call[lasts]
    gap[before] = begin[lasts] - end[before]
    facts: dict[str, Any] = {"duration_ns": length[lasts], "category": "kernel", "kind": "other"}
    graph, new = insert(graph.with_tasks(gap_ns=gap), before, [NAME] * len(before), **facts)
    return add_links(graph, numbers_after(len(graph), new)[call], new, "launch", lag)


def _graph_launches(graph: Graph) -> Ids:
    named = graph.tasks.text("name").where(lambda name: bool(_GRAPH_LAUNCH.match(name)))
    rows = np.flatnonzero(named & ~graph.on_device)
    _, first = np.unique(graph.tasks["event"][rows], return_index=True)
    return np.sort(rows[first])


def _launch_between(graph: Graph, calls: Ids, before: Ids) -> Ids:
    """For each gap, the first graph launch between the launches of its two sides, or -1."""
    launch = graph.links["kind"] == LAUNCH
    cause = np.full(len(graph) + 1, -1, np.int64)
    cause[graph.links["target"][launch]] = graph.links["source"][launch]
    left, right = cause[before], cause[before + 1]
    left = np.where(left < 0, right, left)
    first = calls[np.minimum(np.searchsorted(calls, left), len(calls) - 1)]
    thread = graph.tasks["thread"]
    between = (left >= 0) & (first >= left) & (first <= right) & (thread[left] == thread[right])
    return np.where(between, first, -1)
