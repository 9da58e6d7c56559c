"""`zero`: optimizer state and gradients sharded over the workers."""

from dataclasses import replace

from stepscope.errors import ChangeError
from stepscope.graph import Graph, scale
from stepscope.models.whatif.change import Application, Change
from stepscope.models.whatif.cpu.calibrated import CpuPrediction, on_cpu
from stepscope.models.whatif.parts.gradients import MIB, after_backward, find_gradients, with_buckets_sent
from stepscope.models.whatif.parts.layers import weight_update
from stepscope.models.whatif.parts.network import Network, refuse_communication
from stepscope.models.whatif.parts.sharding import (
    SHARDING_ASSUMPTIONS,
    ZERO_ASSUMPTIONS_ON_CPU,
    with_parameters_sent,
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
    consumers, cap = after_backward(graph, gradients), bucket_cap_mb * MIB
    graph = with_buckets_sent(graph, gradients, consumers, cap, "reduce-scatter", network.gather_ns)
    return with_parameters_sent(graph, gradients, "all-gather", lambda sizes: network.gather_ns(sizes.sum()))


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
    ),
    memory=zero_sharded,
)
