"""`ddp`: data-parallel training, each worker with the batch of this one."""

from dataclasses import replace

from stepscope.graph import Graph
from stepscope.models.whatif.change import Application, Change
from stepscope.models.whatif.cpu.calibrated import CpuPrediction
from stepscope.models.whatif.parts.gradients import MIB, find_gradients, with_bucket_copies, with_buckets_sent
from stepscope.models.whatif.parts.network import Network, refuse_communication


def ddp(
    graph: Graph,
    network: Network = Network(workers=2, bandwidth_gbps=10.0),  # noqa: B008
    algorithm: str = "ring",
    bucket_cap_mb: float = 25.0,
) -> Graph:
    """Distributed data parallel: gradients are all-reduced in buckets during backward.

    By default the first bucket is full with 1 MiB. Gradients are copied to buckets and back if the
    CPU makes these copies.

    Args:
        network: the workers and the links between them.
        algorithm: of the all-reduces, `ring` or `tree`.
        bucket_cap_mb: size at which a bucket is full, MiB; of 25 the first is full with 1.

    Source: DAYDREAM section 5.1, algorithm 6; Li et al., "PyTorch Distributed", VLDB 2020, section
    4.2 (buckets, in the order in which gradients get ready after the first step).
    """
    network = replace(network, algorithm=algorithm).checked("ddp")
    refuse_communication(graph, "ddp")
    gradients = find_gradients(graph, "ddp")
    graph, gradients, consumers = with_bucket_copies(graph, gradients)
    cap = bucket_cap_mb * MIB
    return with_buckets_sent(graph, gradients, consumers, cap, "all-reduce", network.all_reduce_ns)


CHANGE = Change(
    ddp,
    group="Distributed training",
    basis="a cost model of the network that you describe",
    on_cpu=CpuPrediction(),
    assumptions=(
        "buckets as torch.distributed forms them after the first step, idle links, and workers "
        "that are ready at the same time",
        "collectives slow nothing down; copies to buckets cost the CPU what its elementwise "
        "operators take for as many bytes, and devices nothing",
    ),
    error=0.15,
    ranked=False,
    one_rank=True,
    application=Application(
        "N processes of the script, 2 by default, over gloo; calls of the model during training go "
        "through `DistributedDataParallel`. Each process has the batch of the unchanged script",
        defaults={"workers": 2},
        processes=True,
    ),
)
