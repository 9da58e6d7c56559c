"""New device work: kernels, and the calls that launch them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from stepscope.arrays import Ids
from stepscope.graph.edges import LAUNCH, SYNC
from stepscope.graph.graph import Graph
from stepscope.graph.insert import add_links, insert


def insert_device_work(
    graph: Graph, calls: ArrayLike, works: ArrayLike, names: Sequence[str], duration_ns: ArrayLike,
    **columns: Any,
) -> tuple[Graph, Ids]:  # fmt: skip
    """The graph with new kernels after device tasks, and their launches after CPU tasks.

    A launch has the median duration and latency of the graph's launches. CPU calls that waited for
    a kernel wait for the new kernel after it.

    Args:
        graph: any graph.
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
