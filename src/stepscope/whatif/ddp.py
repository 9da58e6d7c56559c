"""`ddp`: what if the model were trained by several workers, each with the batch of this one?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stepscope.errors import ChangeError
from stepscope.graph import (
    Graph,
    add_links,
    append,
    insert,
    numbers_after,
    select,
)
from stepscope.whatif.calibrated import copy_rate
from stepscope.whatif.gradients import Gradients, after_backward, find_gradients
from stepscope.whatif.layers import add_channel
from stepscope.whatif.network import Network

Ids = NDArray[np.int64]
Wanted = dict[int, int]
_MIB = 1 << 20
_FIRST_BUCKET_MIB = 1.0  # torch.distributed's _DEFAULT_FIRST_BUCKET_BYTES


def ddp(
    graph: Graph,
    workers: int = 2,
    bandwidth_gbps: float = 10.0,
    latency_us: float = 20.0,
    algorithm: str = "ring",
    per_node: int = 1,
    intra_gbps: float = 100.0,
    intra_latency_us: float = 5.0,
    bucket_cap_mb: float = 25.0,
) -> Graph:
    """Distributed data parallel: gradients are all-reduced in buckets while backward goes on.

    Args:
        graph: of training steps of one worker.
        workers: how many there are then.
        bandwidth_gbps: of each worker's link to other nodes, Gbit/s.
        latency_us: of a message between nodes.
        algorithm: of the all-reduces, `ring` or `tree`.
        per_node: how many workers share a node.
        intra_gbps: of a link within a node.
        intra_latency_us: of a message within a node.
        bucket_cap_mb: size from which a bucket is full, MiB; the first is full with 1.

    Raises:
        ChangeError: if the sizes of gradients or their backward work are not known, or the steps
            communicate already.

    Source: DAYDREAM section 5.1, algorithm 6; Li et al., "PyTorch Distributed", VLDB 2020, section
    4.2 (buckets, in the order in which gradients get ready after the first step).
    """
    network = Network(
        workers, per_node, bandwidth_gbps, latency_us, intra_gbps, intra_latency_us, algorithm
    ).checked("ddp")
    refuse_communication(graph, "ddp")
    gradients = find_gradients(graph, "ddp")
    bucket = buckets_of(gradients, bucket_cap_mb * _MIB)
    graph, gradients, wanted = with_bucket_copies(graph, gradients)
    return with_all_reduces(graph, gradients, bucket, wanted, network)


def refuse_communication(graph: Graph, change: str) -> None:
    """Refuse steps that communicate already.

    Raises:
        ChangeError: if they do.
    """
    if select(graph, category="communication").any():
        raise ChangeError(f"{change}: these steps communicate already")


def buckets_of(gradients: Gradients, cap: float) -> Ids:
    """The number of each gradient's bucket, counted over all steps.

    Source: PyTorch, torch/csrc/distributed/c10d/reducer.cpp, compute_bucket_assignment_by_size: a
    bucket is closed once it has reached its limit.
    """
    result, number, room, current = [], -1, 0.0, None
    for step, size in zip(gradients.step.tolist(), gradients.bytes.tolist(), strict=True):
        if step != current or room <= 0:
            room = cap if step == current else min(_FIRST_BUCKET_MIB * _MIB, cap)
            number, current = number + 1, step
        result.append(number)
        room -= size
    return np.array(result, np.int64)


def with_bucket_copies(graph: Graph, gradients: Gradients) -> tuple[Graph, Gradients, Wanted]:
    """The CPU copies each gradient to its bucket, and all of them back before they are used.

    Where it is not known how fast, and on devices, whose memory is fast against the network, copies
    take no time.

    Returns:
        The graph, the gradients as ready in their buckets, and what needs them (`after_backward`).

    Source: PyTorch, reducer.cpp, mark_variable_ready_dense and finalize_bucket_dense.
    """
    wanted = after_backward(graph, gradients)
    total = [gradients.bytes[gradients.step == step].sum() for step in wanted]
    rate = None if graph.on_device.any() else copy_rate(graph, max(total, default=0))
    if rate is None:
        return graph, gradients, wanted
    graph, copied = insert(
        graph, gradients.ready, ["gradient to bucket"] * len(gradients.ready),
        duration_ns=np.rint(gradients.bytes / rate),
    )  # fmt: skip
    needs = numbers_after(len(graph), copied)[list(wanted.values())]
    graph, fetched = insert(
        graph, needs, ["gradients from buckets"] * len(needs), in_front=True, stage="backward",
        step=list(wanted), duration_ns=np.rint(np.array(total) / rate),
    )  # fmt: skip
    ready = numbers_after(len(graph), fetched)[copied]
    return graph, replace(gradients, ready=ready), dict(zip(wanted, fetched.tolist(), strict=True))


def with_all_reduces(
    graph: Graph, gradients: Gradients, bucket: Ids, wanted: Wanted, network: Network
) -> Graph:
    """Buckets are reduced one after the other, each once it is full, all before they are needed."""
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
    return add_links(graph, new, [wanted[one] for one in step.tolist()], "communication")
