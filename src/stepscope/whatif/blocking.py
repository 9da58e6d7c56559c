"""Collectives that hold up the CPU thread that calls them until they are done."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepscope.graph import Graph, add_links, append, insert, numbers_after

Ids = NDArray[np.int64]


def hold_up(
    graph: Graph,
    channel: int,
    beside: ArrayLike,
    names: Sequence[str],
    duration_ns: ArrayLike,
    *,
    size: ArrayLike,
    copied_ns: tuple[ArrayLike, ArrayLike] = (0, 0),
    in_front: bool = False,
) -> tuple[Graph, Ids]:
    """A graph with a collective behind each of some CPU tasks, or in front of it.

    The thread copies what is sent, waits, and copies what came.

    Args:
        graph: any graph.
        channel: threads.id of what the collectives run on.
        beside: tasks.id, shape (n,).
        names: of the collectives.
        duration_ns: of each collective, shape (n,).
        size: bytes of each, shape (n,).
        copied_ns: what the copies before and those after take.
        in_front: in front of the tasks.

    Returns:
        The graph, and the numbers that the tasks of before have in it.
    """
    count = len(names)
    copies = np.stack([np.broadcast_to(one, count) for one in copied_ns], axis=1)
    labels = [f"copy {way} {name}" for name in names for way in ("for", "from")]
    graph, copied = insert(
        graph, np.repeat(np.asarray(beside, np.int64), 2), labels, in_front=in_front,
        duration_ns=np.rint(copies.ravel()), category="cpu_op", kind="elementwise",
    )  # fmt: skip
    old = numbers_after(len(graph), copied)
    stage = graph.tasks.text("stage").take(copied[::2])
    graph, new = append(
        graph, np.full(count, channel), names, duration_ns=np.rint(duration_ns), bytes=size,
        step=graph.tasks["step"][copied[::2]], stage=stage,
        category="communication", kind="communication",
    )  # fmt: skip
    moved = numbers_after(len(graph), new)
    copied = moved[copied]
    graph = add_links(graph, copied[::2], new, "communication")
    return add_links(graph, new, copied[1::2], "communication"), moved[old]


def held_up(graph: Graph) -> NDArray[np.bool_]:
    """Tasks for which the thread whose task they waited for does nothing else, bool, (tasks,)."""
    source, target = graph.links["source"].astype(np.int64), graph.links["target"]
    speaks = graph.tasks.text("category").mask("communication")
    begun, done = speaks[target], speaks[source]
    # Between the task before and the one behind it on its thread there is only the wait.
    waits = target[begun] * len(graph) + source[begun] + 1
    ends = source[done] * len(graph) + target[done]
    result = np.zeros(len(graph), np.bool_)
    result[source[done][np.isin(ends, waits)]] = True
    return result
