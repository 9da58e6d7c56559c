"""Work on devices that was not there: kernels, and the calls that launch them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepscope.graph.edges import LAUNCH, SYNC
from stepscope.graph.graph import Graph
from stepscope.graph.insert import add_links, insert

Ids = NDArray[np.int64]


def insert_device_work(
    graph: Graph, calls: ArrayLike, works: ArrayLike, names: Sequence[str], duration_ns: ArrayLike,
    **columns: Any,
) -> tuple[Graph, Ids]:  # fmt: skip
    """A graph with kernels behind others, and the calls that launch them behind CPU tasks.

    A call takes as long as the median launch of the graph, and its kernel follows as soon. A CPU
    call that waited for a kernel waits for what is now behind it.

    Args:
        graph: any graph.
        calls: CPU tasks behind which the calls go, shape (n,).
        works: device tasks behind which the kernels go, shape (n,).
        names: of the kernels.
        duration_ns: of the kernels.
        columns: further columns of the kernels and of their calls.

    Returns:
        The graph, and the numbers of the new kernels in it.
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
    """How long a call that launches takes, and how soon after its start its work begins, ns.

    Both are medians, 0 without launches.
    """
    launches = graph.links.take(graph.links["kind"] == LAUNCH)
    if not len(launches):
        return 0, 0
    length = graph.tasks["duration_ns"][launches["source"]]
    return int(np.median(length)), int(np.median(launches["lag_ns"]))


def _waited_for(graph: Graph, work: Ids) -> Graph:
    """CPU calls that waited for the task before each new one wait for the new one.

    Of a row of new ones it is the last.
    """
    new = np.zeros(len(graph) + 1, np.bool_)
    new[work] = True
    last = np.maximum.accumulate(np.where(new[:-1], -1, np.arange(len(graph))))
    behind = np.arange(len(graph))
    ends = work[~new[work + 1]]
    behind[last[ends]] = ends
    links = graph.links
    waits = (links["kind"] == SYNC) & ~graph.on_device[links["target"]]
    moved = np.where(waits, behind[links["source"]], links["source"])
    return replace(graph, links=links.with_columns(source=moved))
