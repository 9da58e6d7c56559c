"""Work of CUDA graphs that the recorder did not list.

A graph launch starts many kernels, of which a file may list few or none; the stream then seems idle
without a reason. The time between two listed operations is taken to be the graph's work if one of
them belongs to the graph, or if the graph was launched between their launches.
"""

from __future__ import annotations

import re

import numpy as np

from stepscope.arrays import Ids
from stepscope.graph.added_launches import typical_launch
from stepscope.graph.edges import LAUNCH
from stepscope.graph.graph import Graph
from stepscope.graph.insert import add_links, insert, numbers_after
from stepscope.trace.row_order import ends_run

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
    before = _work_before_gaps(graph)
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
    gap = graph.tasks["gap_ns"].copy()
    gap[before] = begin[lasts] - end[before]
    graph, new = insert(
        graph.with_tasks(gap_ns=gap), before, [NAME] * len(before), duration_ns=length[lasts],
        category="kernel", kind="other",
    )  # fmt: skip
    return add_links(graph, numbers_after(len(graph), new)[call], new, "launch", lag)


def _graph_launches(graph: Graph) -> Ids:
    """The first CPU task of each graph launch, ascending."""
    named = graph.tasks.text("name").where(lambda name: bool(_GRAPH_LAUNCH.match(name)))
    rows = np.flatnonzero(named & ~graph.on_device)
    _, first = np.unique(graph.tasks["event"][rows], return_index=True)
    return np.sort(rows[first])


def _work_before_gaps(graph: Graph) -> Ids:
    """Device work that is followed by a gap and by more work on its stream."""
    before = graph.on_device & (graph.tasks["gap_ns"] > 0) & ~ends_run(graph.tasks["thread"])
    return np.flatnonzero(before)


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
