"""`zero`: optimizer state and gradients sharded over the workers."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from stepscope.errors import ChangeError
from stepscope.graph import Graph, add_links, scale
from stepscope.models.whatif.change import Application, Change
from stepscope.models.whatif.cpu.calibrated import CpuPrediction, on_cpu
from stepscope.models.whatif.parts.gradients import MIB, Gradients, after_backward, buckets_of, find_gradients
from stepscope.models.whatif.parts.layers import add_channel, begins_next, last_updates, weight_update
from stepscope.models.whatif.parts.network import Network, append_collectives, refuse_communication
from stepscope.models.whatif.parts.sharding import (
    SHARDING_ASSUMPTIONS,
    ZERO_ASSUMPTIONS_ON_CPU,
    with_sharded_units,
    with_zero_redundancy,
    zero_sharded,
)


def zero(
    graph: Graph,
    stage: int = 2,
    network: Network = Network(workers=8, bandwidth_gbps=100.0),  # noqa: B008
    bucket_cap_mb: float = 25.0,
    by: str = "deepspeed",
) -> Graph:
    """ZeRO: gradients are reduce-scattered, each worker updates its share, then all-gathers.

    Stage 3 is `fsdp`. With `by=torch` (stage 1) gradients are all-reduced as by `ddp`; then
    `ZeroRedundancyOptimizer` updates whole parameters, divided by size, and broadcasts them one by
    one, one worker after the other: that sends half as much again.

    Args:
        stage: 1 and 2 shard optimizer state and gradients (they take the same time); 3 shards the
            parameters, too.
        network: the workers and the links between them.
        bucket_cap_mb: size at which a bucket is full, MiB.
        by: the implementation, `deepspeed` or `torch`.

    Source: Rajbhandari et al., "ZeRO", SC 2020, sections 5 and 7.
    """
    if stage not in (1, 2, 3):
        raise ChangeError(f"zero: expected stage=1, 2 or 3, found {stage}")
    if by not in ("deepspeed", "torch") or (by == "torch" and stage != 1):
        raise ChangeError(
            f"zero: expected by=deepspeed, or by=torch with stage=1; found {by!r} with stage {stage}"
        )
    network = replace(network, gloo=on_cpu(graph)).checked("zero")
    if stage == 3:
        return with_sharded_units(graph, "zero", network, "", bucket_cap_mb)
    refuse_communication(graph, "zero")
    gradients = find_gradients(graph, "zero")
    if by == "torch":
        return with_zero_redundancy(graph, network, gradients, bucket_cap_mb * MIB)
    graph = scale(graph, weight_update(graph, "zero"), 1 / network.workers)
    return _with_shards(graph, network, gradients, bucket_cap_mb)


def _with_shards(graph: Graph, network: Network, gradients: Gradients, cap_mb: float) -> Graph:
    """Add a channel with the reduce-scatters of each step, then its all-gather."""
    bucket = buckets_of(gradients, cap_mb * MIB)
    _, first = np.unique(bucket, return_index=True)
    step = gradients.step[first]
    size = np.bincount(bucket, gradients.bytes)
    whole = np.array([gradients.bytes[gradients.step == number].sum() for number in np.unique(step)])
    steps, sizes = np.append(step, np.unique(step)), np.append(size, whole)
    names = np.repeat(["reduce-scatter", "all-gather"], [len(size), len(whole)])
    order = np.argsort(steps, kind="stable")
    graph, channel = add_channel(graph, "shards", ordered=True)
    time, labels = network.gather_ns(sizes[order]), names[order].tolist()
    graph, new = append_collectives(graph, channel, labels, time, bytes=sizes[order], step=steps[order])
    task = np.empty(len(order), np.int64)
    task[order] = new
    scatter, gather = task[: len(size)], task[len(size) :]
    consumers, updated, next_ = (after_backward(graph, gradients), last_updates(graph), begins_next(graph))
    graph = add_links(graph, gradients.ready, scatter[bucket], "communication")
    graph = add_links(graph, scatter, [consumers[number] for number in step.tolist()], "communication")
    each = np.unique(step).tolist()
    graph = add_links(graph, [updated[number] for number in each], gather, "communication")
    return add_links(graph, gather, [next_[number] for number in each], "communication")


def _only_stage_1(values: Mapping[str, Any]) -> None:
    if (values["stage"], values["by"]) != (1, "torch"):
        raise ChangeError(
            "zero: PyTorch has stage 1 only, its ZeroRedundancyOptimizer; for stage 3 verify fsdp"
        )


CHANGE = Change(
    zero,
    group="Distributed training",
    basis="a cost model of the network that you describe",
    assumptions=SHARDING_ASSUMPTIONS,
    error=0.10,
    error_source="DAYDREAM 6.5",
    on_cpu=CpuPrediction(assumptions=lambda graph: ZERO_ASSUMPTIONS_ON_CPU),
    ranked=False,
    one_rank=True,
    application=Application(
        "as `ddp`; a `ZeroRedundancyOptimizer` of its class makes each optimizer's step, over the "
        "same parameter groups",
        defaults={"workers": 2, "stage": 1, "by": "torch"},
        processes=True,
        check=_only_stage_1,
    ),
    memory=zero_sharded,
)
