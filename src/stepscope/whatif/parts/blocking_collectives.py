"""Collectives that block the CPU thread that calls them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from stepscope.arrays import Ids, Mask
from stepscope.graph import Graph, add_links, append, insert, numbers_after


def add_blocking(
    graph: Graph,
    channel: int,
    tasks: ArrayLike,
    names: Sequence[str],
    duration_ns: ArrayLike,
    *,
    size: ArrayLike,
    copied_ns: tuple[ArrayLike, ArrayLike] = (0, 0),
    in_front: bool = False,
) -> tuple[Graph, Ids]:
    """Add a collective after each of some CPU tasks, or before it.

    The thread copies the data to send, waits, and copies the received data.

    Args:
        graph: any graph.
        channel: threads.id of the channel that runs the collectives.
        tasks: tasks.id, shape (n,).
        names: of the collectives.
        duration_ns: of each collective, shape (n,).
        size: bytes of each, shape (n,).
        copied_ns: time of the copies before, and of those after.
        in_front: before the tasks.

    Returns:
        The graph, and the numbers of the earlier tasks in it.
    """
    count = len(names)
    copies = np.stack([np.broadcast_to(time, count) for time in copied_ns], axis=1)
    labels = [f"copy {way} {name}" for name in names for way in ("for", "from")]
    graph, copied = insert(
        graph, np.repeat(np.asarray(tasks, np.int64), 2), labels, in_front=in_front,
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


def blocks_its_caller(graph: Graph) -> Mask:
    """Collectives whose calling thread does nothing else meanwhile, bool, shape (tasks,)."""
    source, target = graph.links["source"].astype(np.int64), graph.links["target"]
    collective = graph.tasks.text("category").mask("communication")
    begun, done = collective[target], collective[source]
    # Only the wait lies between the task before and the task after it on its thread.
    waits = target[begun] * len(graph) + source[begun] + 1
    ends = source[done] * len(graph) + target[done]
    result = np.zeros(len(graph), np.bool_)
    result[source[done][np.isin(ends, waits)]] = True
    return result
