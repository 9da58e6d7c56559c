"""`zero`: what if optimizer state and gradients were sharded over the workers?"""

from __future__ import annotations

import numpy as np

from stepscope.errors import ChangeError
from stepscope.graph import Graph, add_links, append
from stepscope.whatif.calibrated import on_cpu
from stepscope.whatif.ddp import buckets_of, refuse_communication
from stepscope.whatif.fsdp import shard_update, with_sharded_units
from stepscope.whatif.gradients import Gradients, after_backward, find_gradients
from stepscope.whatif.layers import add_channel, begins_next, last_updates
from stepscope.whatif.network import Network
from stepscope.whatif.zero_in_torch import zero_in_torch

_MIB = 1 << 20


def zero(
    graph: Graph,
    stage: int = 2,
    workers: int = 8,
    bandwidth_gbps: float = 100.0,
    latency_us: float = 20.0,
    per_node: int = 1,
    intra_gbps: float = 100.0,
    intra_latency_us: float = 5.0,
    bucket_cap_mb: float = 25.0,
    by: str = "deepspeed",
) -> Graph:
    """ZeRO: gradients are reduce-scattered, each worker updates its share, then all-gathers.

    Args:
        graph: of training steps of one worker.
        stage: 1 and 2 shard optimizer state and gradients (they take the same time); 3 shards the
            parameters too, as `fsdp` does.
        workers: how many there are then.
        bandwidth_gbps: of each worker's link to other nodes, Gbit/s.
        latency_us: of a message between nodes.
        per_node: how many workers share a node.
        intra_gbps: of a link within a node.
        intra_latency_us: of a message within a node.
        bucket_cap_mb: size from which a bucket is full, MiB.
        by: whose; `torch` for its ZeroRedundancyOptimizer (stage 1), which all-reduces gradients
            and broadcasts parameters.

    Raises:
        ChangeError: if the gradients or the weight update are not known, or the steps communicate.

    Source: Rajbhandari et al., "ZeRO", SC 2020, sections 5 and 7.
    """
    if stage not in (1, 2, 3):
        raise ChangeError(f"zero: expected stage 1, 2 or 3, found {stage}")
    if by not in ("deepspeed", "torch") or (by == "torch" and stage != 1):
        raise ChangeError(f"zero: expected by=deepspeed, or by=torch with stage 1; found {by!r} "
                          f"with stage {stage}")  # fmt: skip
    network = Network(
        workers, per_node, bandwidth_gbps, latency_us, intra_gbps, intra_latency_us,
        gloo=on_cpu(graph),
    ).checked("zero")  # fmt: skip
    if stage == 3:
        return with_sharded_units(graph, "zero", network, "", bucket_cap_mb)
    refuse_communication(graph, "zero")
    gradients = find_gradients(graph, "zero")
    if by == "torch":
        return zero_in_torch(graph, network, gradients, bucket_cap_mb * _MIB)
    return _with_shards(shard_update(graph, "zero", workers), network, gradients, bucket_cap_mb)


def _with_shards(graph: Graph, network: Network, gradients: Gradients, cap_mb: float) -> Graph:
    """One channel: each step's reduce-scatters, then its all-gather."""
    bucket = buckets_of(gradients, cap_mb * _MIB)
    _, first = np.unique(bucket, return_index=True)
    step = gradients.step[first]
    size = np.bincount(bucket, gradients.bytes)
    whole = np.array([gradients.bytes[gradients.step == one].sum() for one in np.unique(step)])
    steps, sizes = np.append(step, np.unique(step)), np.append(size, whole)
    names = np.repeat(["reduce-scatter", "all-gather"], [len(size), len(whole)])
    order = np.argsort(steps, kind="stable")
    graph, channel = add_channel(graph, "shards", ordered=True)
    graph, new = append(
        graph, channel, names[order].tolist(), bytes=sizes[order], step=steps[order],
        duration_ns=np.rint(network.gather_ns(sizes[order])),
        category="communication", kind="communication",
    )  # fmt: skip
    task = np.empty(len(order), np.int64)
    task[order] = new
    scatter, gather = task[: len(size)], task[len(size) :]
    wanted, updated, next_ = (after_backward(graph, gradients), last_updates(graph),
                              begins_next(graph))  # fmt: skip
    graph = add_links(graph, gradients.ready, scatter[bucket], "communication")
    graph = add_links(graph, scatter, [wanted[one] for one in step.tolist()], "communication")
    every = np.unique(step).tolist()
    graph = add_links(graph, [updated[one] for one in every], gather, "communication")
    return add_links(graph, gather, [next_[one] for one in every], "communication")
