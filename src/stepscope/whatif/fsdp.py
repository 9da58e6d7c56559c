"""`fsdp`: what if parameters, gradients and optimizer state were all sharded over the workers?"""

from __future__ import annotations

import numpy as np

from stepscope.graph import Graph, add_links, append, scale, simulate
from stepscope.whatif.calibrated import on_cpu
from stepscope.whatif.ddp import refuse_communication
from stepscope.whatif.fsdp_on_cpu import fsdp_on_cpu
from stepscope.whatif.gradients import after_backward, find_gradients
from stepscope.whatif.layers import add_channel, last_updates, neighbour, weight_update
from stepscope.whatif.network import Network
from stepscope.whatif.units import Unit, units_of

_MIB = 1 << 20


def fsdp(
    graph: Graph,
    unit: str = "",
    workers: int = 8,
    bandwidth_gbps: float = 100.0,
    latency_us: float = 20.0,
    per_node: int = 1,
    intra_gbps: float = 100.0,
    intra_latency_us: float = 5.0,
    unit_mb: float = 25.0,
) -> Graph:
    """Fully sharded: units are all-gathered before they are used, gradients are reduce-scattered.

    The next unit is gathered while one computes, the one after it not before that has ended. Each
    worker updates its share of the weights. Parameters of no module that is a unit are kept from
    forward to backward. On a CPU see `fsdp_on_cpu`.

    Args:
        graph: of training steps of one worker.
        unit: glob on the paths of the modules that are units, such as `layers.*`; the others are
            one unit. By default parameters become units in the order of their use, by size.
        workers: how many there are then.
        bandwidth_gbps: of each worker's link to other nodes, Gbit/s.
        latency_us: of a message between nodes.
        per_node: how many workers share a node.
        intra_gbps: of a link within a node.
        intra_latency_us: of a message within a node.
        unit_mb: without `unit`, the size with which a unit is full, MiB.

    Raises:
        ChangeError: if the gradients, where their parameters are used or the weight update are not
            known, no module matches, or the steps communicate already.

    Source: Zhao et al., "PyTorch FSDP", VLDB 2023, sections 3.3 and 4; rate limit of two units;
    PyTorch, torch/distributed/fsdp/_fully_shard/_fsdp_state.py, _lazy_init (the rest is kept).
    """
    network = Network(
        workers, per_node, bandwidth_gbps, latency_us, intra_gbps, intra_latency_us,
        gloo=on_cpu(graph),
    ).checked("fsdp")  # fmt: skip
    return with_sharded_units(graph, "fsdp", network, unit, unit_mb)


def with_sharded_units(
    graph: Graph, change: str, network: Network, unit: str, unit_mb: float
) -> Graph:
    """What `fsdp` makes of a graph, on a network that was checked; `change` is who refuses."""
    refuse_communication(graph, change)
    gradients = find_gradients(graph, change)
    units = {
        step: list(units_of(graph, change, gradients, step, unit, unit_mb * _MIB))
        for step in graph.window.steps
    }
    if on_cpu(graph):
        every = [one for step in graph.window.steps for one in units[step]]
        return fsdp_on_cpu(graph, change, network, every)
    graph = shard_update(graph, change, network.workers)
    updated, wanted = last_updates(graph), after_backward(graph, gradients)
    graph, channel = add_channel(graph, "shards")
    previous = -1
    for step in graph.window.steps:
        if units[step]:
            graph = _with_units(graph, channel, network, step, units[step], previous, wanted[step])
        previous = updated.get(step, -1)
    return graph


def shard_update(graph: Graph, change: str, workers: int) -> Graph:
    """The weight update takes the n-th part of its time.

    Raises:
        ChangeError: if there is none.
    """
    return scale(graph, weight_update(graph, change), 1 / workers)


def _with_units(
    graph: Graph, channel: int, network: Network, step: int, units: list[Unit], before: int,
    wanted: int,
) -> Graph:  # fmt: skip
    """Gathers, in forward and in backward order, and reduce-scatters of one step."""
    count = len(units)
    start = simulate(graph).start_ns
    used, begun = (np.array([getattr(one, when) for one in units]) for when in ("used", "begun"))
    dropped = np.flatnonzero([not one.stays for one in units])
    backward = dropped[np.argsort(start[begun[dropped]], kind="stable")]
    order = np.append(np.arange(count), backward)
    size = np.array([one.bytes for one in units], np.int64)
    names = [f"all-gather {unit}" for unit in order] + [f"reduce-scatter {n}" for n in range(count)]
    graph, new = append(
        graph, channel, names, bytes=np.append(size[order], size), step=step,
        duration_ns=np.rint(network.gather_ns(np.append(size[order], size))),
        category="communication", kind="communication",
    )  # fmt: skip
    gather, scatter = new[: len(order)], new[len(order) :]
    needs = np.append(used, begun[backward])
    graph = add_links(graph, gather, needs, "communication")
    before_use = neighbour(graph, needs, -1)
    before_use = np.where(before_use < 0, needs, before_use)
    graph = add_links(graph, before_use[1:-1], gather[2:], "communication")
    if before >= 0:
        graph = add_links(graph, [before, before], gather[:2], "communication")
    for one, task in zip(units, scatter.tolist(), strict=True):
        graph = add_links(graph, one.ready, np.full(len(one.ready), task), "communication")
    return add_links(graph, scatter, np.full(count, wanted), "communication")
