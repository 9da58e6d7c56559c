"""`fsdp`: parameters, gradients and optimizer state sharded over the workers."""

from dataclasses import replace

from stepscope.graph import Graph
from stepscope.models.whatif.change import Application, Change
from stepscope.models.whatif.cpu.calibrated import CpuPrediction, on_cpu
from stepscope.models.whatif.cpu.updates import SHARDING_ASSUMPTIONS_ON_CPU
from stepscope.models.whatif.parts.network import Network
from stepscope.models.whatif.parts.sharding import SHARDING_ASSUMPTIONS, fully_sharded, with_sharded_units


def fsdp(
    graph: Graph,
    unit: str = "",
    network: Network = Network(workers=8, bandwidth_gbps=100.0),  # noqa: B008
    unit_mb: float = 25.0,
) -> Graph:
    """Fully sharded data parallel: units are all-gathered before use, gradients reduce-scattered.

    The next unit is gathered while one computes; the one after that waits until the computation
    has ended. Each worker updates its share of the weights. Parameters of modules that are no unit
    stay gathered from forward to backward.

    Args:
        unit: glob for the paths of the modules that are units, such as `layers.*`; all other
            modules are one unit. By default units have `unit_mb`, in the order of use.
        network: the workers and the links between them.
        unit_mb: without `unit`, the size at which a unit is full, MiB.

    Source: Zhao et al., "PyTorch FSDP", VLDB 2023, sections 3.3 and 4; rate limit of two units;
    PyTorch, torch/distributed/fsdp/_fully_shard/_fsdp_state.py, _lazy_init (the rest is kept).
    """
    network = replace(network, gloo=on_cpu(graph)).checked("fsdp")
    return with_sharded_units(graph, "fsdp", network, unit, unit_mb)


CHANGE = Change(
    fsdp,
    group="Distributed training",
    basis="a cost model of the network that you describe",
    assumptions=SHARDING_ASSUMPTIONS,
    error=0.17,
    on_cpu=CpuPrediction(assumptions=lambda graph: SHARDING_ASSUMPTIONS_ON_CPU),
    ranked=False,
    one_rank=True,
    application=Application(
        "N processes over gloo; before its first call in training `fully_shard` shards each model: "
        "the outermost modules whose path matches `unit` are a unit each, the rest is one more; "
        "optimizers get the shards in place of their parameters",
        arguments=("unit",),
        defaults={"workers": 2},
        processes=True,
    ),
    memory=fully_sharded,
)
