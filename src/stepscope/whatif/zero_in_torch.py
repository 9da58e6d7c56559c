"""`zero` as PyTorch has it: DistributedDataParallel with a ZeroRedundancyOptimizer."""

from __future__ import annotations

from heapq import heapreplace

import numpy as np

from stepscope.graph import Graph, add_links, append, scale
from stepscope.whatif.blocking import hold_up
from stepscope.whatif.calibrated import on_cpu
from stepscope.whatif.ddp import buckets_of, with_all_reduces, with_bucket_copies
from stepscope.whatif.gradients import Gradients
from stepscope.whatif.layers import add_channel, begins_next, last_updates, weight_update
from stepscope.whatif.network import Network

ASSUMED = (
    "links that are free, workers ready together; copies to and from buckets are as fast as "
    "calibrated, else as this step's elementwise operators",
    "the weight update and Python between its operators take a worker's share of their time",
    "as torch does it (by=torch), of whole parameters, each broadcast; as DeepSpeed, of equal "
    "shares, in one all-gather",
)


def zero_in_torch(graph: Graph, network: Network, gradients: Gradients, cap: float) -> Graph:
    """Gradients are all-reduced; each worker updates its parameters and then broadcasts them.

    Whole parameters are dealt out by size, so what the worker with most of them has to update
    counts. One broadcast a parameter, one worker's after the other's; on a CPU the step goes on
    once all are done.

    Args:
        graph: of training steps of one worker.
        network: checked.
        gradients: of the graph.
        cap: size from which a bucket is full, bytes.

    Raises:
        ChangeError: if there is no weight update.

    Source: PyTorch, torch/distributed/optim/zero_redundancy_optimizer.py, _partition_parameters and
    _sync_params.
    """
    graph = _updated(graph, gradients, network.workers)
    bucket = buckets_of(gradients, cap)
    steps = np.unique(gradients.step)
    size = np.array([gradients.bytes[gradients.step == step].sum() for step in steps])
    each = network.broadcast_ns(gradients.bytes)
    time = np.array([each[gradients.step == step].sum() for step in steps])
    graph, gradients, wanted = with_bucket_copies(graph, gradients)
    graph = with_all_reduces(graph, gradients, bucket, wanted, network)
    graph, channel = add_channel(graph, "parameters", ordered=True)
    last = last_updates(graph)
    updated, names = [last[step] for step in steps.tolist()], ["broadcast"] * len(steps)
    if on_cpu(graph):
        return hold_up(graph, channel, updated, names, time, size=size)[0]
    begins = begins_next(graph)
    graph, new = append(
        graph, np.full(len(steps), channel), names, duration_ns=np.rint(time), bytes=size,
        step=steps, category="communication", kind="communication",
    )  # fmt: skip
    graph = add_links(graph, updated, new, "communication")
    return add_links(graph, new, [begins[step] for step in steps.tolist()], "communication")


def largest_share(size: list[int], workers: int) -> float:
    """The part of all bytes that the worker with most of them has.

    Example:
        >>> largest_share([1, 2, 3], 2)
        0.5
    """
    load = [0] * workers
    for one in sorted(size, reverse=True):
        heapreplace(load, load[0] + one)
    return max(load) / sum(load)


def _updated(graph: Graph, gradients: Gradients, workers: int) -> Graph:
    update = weight_update(graph, "zero")
    sizes = gradients.bytes[gradients.step == gradients.step[0]].tolist()
    share = largest_share(sizes, workers)
    graph = scale(graph, update, share)
    if not on_cpu(graph):
        return graph
    gap, thread = graph.tasks["gap_ns"].copy(), graph.tasks["thread"]
    # Python between the operators, too; what follows the last of them stays.
    within = np.flatnonzero(update[:-1] & update[1:] & (thread[:-1] == thread[1:]))
    gap[within] = np.rint(share * gap[within])
    return graph.with_tasks(gap_ns=gap)
