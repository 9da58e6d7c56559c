"""Gradients in buckets, all-reduced while backward goes on, as DistributedDataParallel does it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stepscope.arrays import Floats, Ids
from stepscope.graph import Graph, add_links, append, insert, numbers_after
from stepscope.whatif.parts.cpu_calibration import copy_rate
from stepscope.whatif.parts.gradients import Gradients, after_backward
from stepscope.whatif.parts.layers import add_channel
from stepscope.whatif.parts.network import Network

Consumers = dict[int, int]
MIB = 1 << 20
_FIRST_BUCKET_MIB = 1.0  # torch.distributed's _DEFAULT_FIRST_BUCKET_BYTES


def buckets_of(gradients: Gradients, cap: float) -> Ids:
    """The bucket of each gradient, numbered over all steps.

    Source: PyTorch, torch/csrc/distributed/c10d/reducer.cpp, compute_bucket_assignment_by_size: a
    bucket is closed once it has reached its limit.
    """
    result, number, room, current = [], -1, 0.0, None
    for step, size in zip(gradients.step.tolist(), gradients.bytes.tolist(), strict=True):
        if step != current or room <= 0:
            room = cap if step == current else min(_FIRST_BUCKET_MIB * MIB, cap)
            number, current = number + 1, step
        result.append(number)
        room -= size
    return np.array(result, np.int64)


def with_bucket_copies(graph: Graph, gradients: Gradients) -> tuple[Graph, Gradients, Consumers]:
    """Copy each gradient to its bucket on the CPU, and all of them back before they are used.

    Copies take no time if their rate is unknown, and on devices, whose memory is much faster than
    the network.

    Returns:
        The graph, the gradients as ready in their buckets, and their consumers (`after_backward`).

    Source: PyTorch, reducer.cpp, mark_variable_ready_dense and finalize_bucket_dense.
    """
    consumers = after_backward(graph, gradients)
    total = [gradients.bytes[gradients.step == step].sum() for step in consumers]
    rate = None if graph.on_device.any() else copy_rate(graph, max(total, default=0))
    if rate is None:
        return graph, gradients, consumers
    graph, copied = insert(
        graph, gradients.ready, ["gradient to bucket"] * len(gradients.ready),
        duration_ns=np.rint(gradients.bytes / rate),
    )  # fmt: skip
    needs = numbers_after(len(graph), copied)[list(consumers.values())]
    graph, fetched = insert(
        graph, needs, ["gradients from buckets"] * len(needs), in_front=True, stage="backward",
        step=list(consumers), duration_ns=np.rint(np.array(total) / rate),
    )  # fmt: skip
    ready = numbers_after(len(graph), fetched)[copied]
    return (
        graph,
        replace(gradients, ready=ready),
        dict(zip(consumers, fetched.tolist(), strict=True)),
    )


def with_all_reduces(
    graph: Graph, gradients: Gradients, bucket: Ids, consumers: Consumers, network: Network
) -> Graph:
    """All-reduce the buckets one after the other, each once it is full."""
    graph, channel = add_channel(graph, "all-reduce", ordered=True)
    _, last = np.unique(bucket[::-1], return_index=True)
    ends = len(bucket) - 1 - last
    step = gradients.step[ends]
    size = np.bincount(bucket, gradients.bytes)
    graph, new = append(
        graph, channel, [f"all-reduce {number}" for number in range(len(size))],
        duration_ns=np.rint(network.all_reduce_ns(size)), bytes=size, step=step,
        category="communication", kind="communication", stage="backward",
    )  # fmt: skip
    graph = add_links(graph, gradients.ready, new[bucket], "communication")
    return add_links(graph, new, [consumers[number] for number in step.tolist()], "communication")


def after_filling(
    graph: Graph, tasks: Ids, names: Sequence[str], time: Floats
) -> tuple[Graph, Ids]:
    """Add work on a CPU between the last task that each all-reduce waits for and the all-reduce.

    Args:
        graph: any graph.
        tasks: the all-reduces, tasks.id, shape (n,); one that waits for nothing gets no work.
        names: of the new tasks.
        time: of the new tasks, ns, shape (n,).

    Returns:
        The graph, and the all-reduces in it.
    """
    links = graph.links
    last = np.full(len(graph), -1, np.int64)
    np.maximum.at(last, links["target"], links["source"].astype(np.int64))
    known = np.flatnonzero(last[tasks] >= 0)
    graph, new = insert(
        graph, last[tasks][known], [names[row] for row in known.tolist()],
        duration_ns=np.rint(time[known]), category="cpu_op", kind="elementwise",
    )  # fmt: skip
    tasks = numbers_after(len(graph), new)[tasks]
    return add_links(graph, new, tasks[known], "communication"), tasks
