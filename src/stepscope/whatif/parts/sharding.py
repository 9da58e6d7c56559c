"""Parameters sharded over the workers as by FSDP: gathered before use, gradients scattered."""

from __future__ import annotations

import numpy as np

from stepscope.graph import Graph, add_links, append, scale, simulate
from stepscope.whatif.parts.buckets import MIB
from stepscope.whatif.parts.cpu_calibration import on_cpu
from stepscope.whatif.parts.gradients import after_backward, find_gradients
from stepscope.whatif.parts.graph_collectives import refuse_communication
from stepscope.whatif.parts.layers import add_channel, last_updates, neighbor, weight_update
from stepscope.whatif.parts.network import Network
from stepscope.whatif.parts.sharding_on_cpu import shard_on_cpu
from stepscope.whatif.parts.sharding_units import Unit, units_of

SHARDING_ASSUMPTIONS = (
    "a ring for each all-gather and reduce-scatter, idle links, workers that are ready together",
    "a worker's share of the weight update takes 1/N of its time, with as many launches",
    "copies into and out of shards take no time, and collectives slow nothing down",
)


def with_sharded_units(
    graph: Graph, change: str, network: Network, unit: str, unit_mb: float
) -> Graph:
    """Shard parameters, gradients and optimizer state in units.

    Args:
        graph: of training steps of one worker.
        change: the name of the change, for its errors.
        network: checked.
        unit: glob for the paths of the modules that are units; empty for units by size.
        unit_mb: without `unit`, the size at which a unit is full, MiB.

    Raises:
        ChangeError: if the steps communicate, or gradients, where parameters are used, or the
            weight update are unknown.
    """
    refuse_communication(graph, change)
    gradients = find_gradients(graph, change)
    units = {
        step: list(units_of(graph, change, gradients, step, unit, unit_mb * MIB))
        for step in graph.window.steps
    }
    if on_cpu(graph):
        all_units = [one for step in graph.window.steps for one in units[step]]
        return shard_on_cpu(graph, change, network, all_units)
    graph = shard_update(graph, change, network.workers)
    updated, consumers = last_updates(graph), after_backward(graph, gradients)
    graph, channel = add_channel(graph, "shards")
    previous = -1
    for step in graph.window.steps:
        if units[step]:
            graph = _with_units(
                graph, channel, network, step, units[step], previous, consumers[step]
            )
        previous = updated.get(step, -1)
    return graph


def shard_update(graph: Graph, change: str, workers: int) -> Graph:
    """Divide the time of the weight update by the number of workers.

    Raises:
        ChangeError: if there is no weight update.
    """
    return scale(graph, weight_update(graph, change), 1 / workers)


def _with_units(
    graph: Graph, channel: int, network: Network, step: int, units: list[Unit], previous: int,
    consumer: int,
) -> Graph:  # fmt: skip
    """Add the all-gathers of one step, in forward and backward order, and its reduce-scatters."""
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
    before_use = neighbor(graph, needs, -1)
    before_use = np.where(before_use < 0, needs, before_use)
    graph = add_links(graph, before_use[1:-1], gather[2:], "communication")
    if previous >= 0:
        graph = add_links(graph, [previous, previous], gather[:2], "communication")
    for one, task in zip(units, scatter.tolist(), strict=True):
        graph = add_links(graph, one.ready, np.full(len(one.ready), task), "communication")
    return add_links(graph, scatter, np.full(count, consumer), "communication")
