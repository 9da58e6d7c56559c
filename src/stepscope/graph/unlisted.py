"""Work of CUDA graphs that the recorder did not list.

A graph launch starts many kernels, of which a file may list a few or none; the stream then stands
still for no reason that can be seen. The time between two pieces of listed work, of which one is
the graph's, or between whose launches the graph was launched, is taken to be its work.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from stepscope.graph.edges import LAUNCH
from stepscope.graph.graph import Graph
from stepscope.graph.insert import add_links, insert, numbers_after
from stepscope.graph.launch import typical_launch
from stepscope.trace.order import ends_run

Ids = NDArray[np.int64]
NAME = "work of a CUDA graph, not listed"
_GRAPH_LAUNCH = re.compile(r"^(cuda|hip|cu)GraphLaunch")


def with_unlisted_work(graph: Graph) -> Graph:
    """The graph with a task for what graph launches seem to do beside what is listed.

    It lasts from when it could begin, behind its launch and what its stream did before, to the next
    work on the stream, if that is longer than a launch takes. The replay stays as it was.
    """
    calls = _graph_launches(graph)
    before = _held(graph) if len(calls) else calls
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
    """The CPU tasks with which graph launches begin, ascending."""
    named = graph.tasks.text("name").where(lambda name: bool(_GRAPH_LAUNCH.match(name)))
    rows = np.flatnonzero(named & ~graph.on_device)
    _, first = np.unique(graph.tasks["event"][rows], return_index=True)
    return np.sort(rows[first])


def _held(graph: Graph) -> Ids:
    """Work on streams with a gap behind it, and more work of the stream behind that."""
    held = graph.on_device & (graph.tasks["gap_ns"] > 0) & ~ends_run(graph.tasks["thread"])
    return np.flatnonzero(held)


def _launch_between(graph: Graph, calls: Ids, before: Ids) -> Ids:
    """For each gap the first graph launch from that of its one side to that of the other, or -1."""
    launch = graph.links["kind"] == LAUNCH
    cause = np.full(len(graph) + 1, -1, np.int64)
    cause[graph.links["target"][launch]] = graph.links["source"][launch]
    left, right = cause[before], cause[before + 1]
    left = np.where(left < 0, right, left)
    if not len(calls):
        return left
    first = calls[np.minimum(np.searchsorted(calls, left), len(calls) - 1)]
    thread = graph.tasks["thread"]
    between = (left >= 0) & (first >= left) & (first <= right) & (thread[left] == thread[right])
    return np.where(between, first, -1)
