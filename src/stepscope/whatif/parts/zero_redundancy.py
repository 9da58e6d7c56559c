"""`zero` in PyTorch: DistributedDataParallel with a ZeroRedundancyOptimizer."""

from __future__ import annotations

from heapq import heapreplace

import numpy as np

from stepscope.graph import Graph, add_links, append, scale
from stepscope.whatif.parts.blocking_collectives import add_blocking
from stepscope.whatif.parts.buckets import buckets_of, with_all_reduces, with_bucket_copies
from stepscope.whatif.parts.cpu_calibration import on_cpu
from stepscope.whatif.parts.gradients import Gradients
from stepscope.whatif.parts.layers import add_channel, begins_next, last_updates, weight_update
from stepscope.whatif.parts.network import Network

ZERO_ASSUMPTIONS_ON_CPU = (
    "idle links, workers that are ready together; copies to and from buckets are as fast as "
    "calibrated, else as this step's elementwise operators",
    "the weight update, and Python between its operators, take a worker's share of their time",
    "with by=torch whole parameters are updated, each broadcast; as in DeepSpeed equal shares, in "
    "one all-gather",
)


def with_zero_redundancy(graph: Graph, network: Network, gradients: Gradients, cap: float) -> Graph:
    """All-reduce gradients; let each worker update its parameters and broadcast them.

    Whole parameters are divided by size, so the worker with the largest share counts. There is one
    broadcast per parameter, one worker after the other; on a CPU the step continues once all are
    done.

    Args:
        graph: of training steps of one worker.
        network: checked.
        gradients: of the graph.
        cap: size at which a bucket is full, bytes.

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
    graph, gradients, consumers = with_bucket_copies(graph, gradients)
    graph = with_all_reduces(graph, gradients, bucket, consumers, network)
    graph, channel = add_channel(graph, "parameters", ordered=True)
    last = last_updates(graph)
    updated, names = [last[step] for step in steps.tolist()], ["broadcast"] * len(steps)
    if on_cpu(graph):
        return add_blocking(graph, channel, updated, names, time, size=size)[0]
    begins = begins_next(graph)
    graph, new = append(
        graph, np.full(len(steps), channel), names, duration_ns=np.rint(time), bytes=size,
        step=steps, category="communication", kind="communication",
    )  # fmt: skip
    graph = add_links(graph, updated, new, "communication")
    return add_links(graph, new, [begins[step] for step in steps.tolist()], "communication")


def largest_share(size: list[int], workers: int) -> float:
    """The largest share of all bytes that a worker has.

    Example:
        >>> largest_share([1, 2, 3], 2)
        0.5
    """
    load = [0] * workers
    for bytes_ in sorted(size, reverse=True):
        heapreplace(load, load[0] + bytes_)
    return max(load) / sum(load)


def _updated(graph: Graph, gradients: Gradients, workers: int) -> Graph:
    update = weight_update(graph, "zero")
    sizes = gradients.bytes[gradients.step == gradients.step[0]].tolist()
    share = largest_share(sizes, workers)
    graph = scale(graph, update, share)
    if not on_cpu(graph):
        return graph
    gap, thread = graph.tasks["gap_ns"].copy(), graph.tasks["thread"]
    # Python between the operators, too; the gap after the last of them stays.
    within = np.flatnonzero(update[:-1] & update[1:] & (thread[:-1] == thread[1:]))
    gap[within] = np.rint(share * gap[within])
    return graph.with_tasks(gap_ns=gap)
