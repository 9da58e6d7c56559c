"""`p3`: parameters sent in slices, in the order of their next use."""

from __future__ import annotations

import numpy as np

from stepscope.arrays import Ids
from stepscope.errors import ChangeError
from stepscope.graph import Graph, add_links, append
from stepscope.trace.row_order import inverse
from stepscope.whatif.change import OURS, Change
from stepscope.whatif.parts.gradients import Gradients, find_gradients
from stepscope.whatif.parts.graph_collectives import refuse_communication
from stepscope.whatif.parts.layers import add_channel, begins_next
from stepscope.whatif.parts.network import Network

_LEAST_KB = 0.1


def p3(
    graph: Graph,
    workers: int = 4,
    bandwidth_gbps: float = 10.0,
    latency_us: float = 20.0,
    slice_kb: float = 200.0,
) -> Graph:
    """Priority-based parameter propagation: slices are pushed and pulled in the order of next use.

    Each worker is also a server, of an equal share of the bytes. A worker pushes a slice as soon as
    it is ready and has it back before the parameter's forward in the next step; of the slices that
    wait for the network, the one that forward needs first goes first. A server receives a slice
    from all workers at once, and sends it to all at once.

    Args:
        graph: of training steps of one worker.
        workers: number of workers.
        bandwidth_gbps: of each worker's link in each direction, Gbit/s.
        latency_us: of a message, us.
        slice_kb: size of a slice, kB; the paper's is 50,000 parameters.

    Raises:
        ChangeError: if the gradients or the uses of their parameters are unknown, or the steps
            communicate already.

    Source: DAYDREAM sections 5.1 and A.5, algorithm 7; Jayarajan et al., "Priority-based parameter
    propagation", MLSys 2019.
    """
    network = Network(workers, bandwidth_gbps, latency_us).checked("p3")
    if slice_kb < _LEAST_KB:
        raise ChangeError(f"p3: expected slice_kb of at least {_LEAST_KB}, found {slice_kb}")
    refuse_communication(graph, "p3")
    gradients = find_gradients(graph, "p3")
    if (gradients.used < 0).all():
        raise ChangeError("p3: the trace does not show where forward uses the parameters")
    parameter, size = _slices(gradients, slice_kb * 1e3)
    return _with_slices(graph, network, gradients, parameter, size)


def _slices(gradients: Gradients, most: float) -> tuple[Ids, Ids]:
    """The row of each slice's gradient, and its bytes."""
    count = np.ceil(gradients.bytes / most).astype(np.int64)
    row = np.repeat(np.arange(len(count)), count)
    number = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    size = np.minimum(most, gradients.bytes[row] - number * most)
    return row, size.astype(np.int64)


def _with_slices(
    graph: Graph, network: Network, gradients: Gradients, row: Ids, size: Ids
) -> Graph:
    graph, send = add_channel(graph, "send")
    graph, receive = add_channel(graph, "receive")
    own = _servers(gradients.step[row], size, network.workers) == 0
    # A worker receives the slices that it serves from all others, and sends them to all others.
    messages = np.where(own, network.workers - 1, 1)
    time = messages * (size * 8 / network.bandwidth_gbps)
    threads = np.concatenate([np.where(own, receive, send), np.where(own, send, receive)])
    names = [f"{way} {number}" for way in ("push", "pull") for number in row.tolist()]
    both = np.concatenate([row, row])
    graph, new = append(
        graph, threads, names, duration_ns=np.rint(np.tile(time, 2)), bytes=np.tile(size, 2),
        step=gradients.step[both], priority=-order_of_use(gradients)[both],
        category="communication", kind="communication", stage="backward",
    )  # fmt: skip
    push, pull = new[: len(row)], new[len(row) :]
    graph = add_links(graph, gradients.ready[row], push, "communication")
    # The next message does not wait until this one has arrived.
    # Another server's link is shared with the messages of all other workers.
    shared = np.where(own, 0, (network.workers - 2) * size * 8 / network.bandwidth_gbps)
    arrives = np.rint(shared + network.latency_us * 1e3)
    graph = add_links(graph, push, pull, "communication", arrives)
    return add_links(graph, pull, next_use(graph, gradients)[row], "communication", arrives)


def _servers(step: Ids, size: Ids, workers: int) -> Ids:
    """The server of each slice: the worker that serves least of the step so far."""
    result, served, current = [], [0] * workers, None
    for number, bytes_ in zip(step.tolist(), size.tolist(), strict=True):
        if number != current:
            served, current = [0] * workers, number
        server = served.index(min(served))
        served[server] += bytes_
        result.append(server)
    return np.array(result, np.int64)


def order_of_use(gradients: Gradients) -> Ids:
    """The rank of each parameter within its step, in the order in which forward uses them.

    Parameters without a known use come last.
    """
    used = np.where(gradients.used < 0, np.iinfo(np.int64).max, gradients.used)
    order = np.lexsort((used, gradients.step))
    first = np.searchsorted(gradients.step[order], gradients.step)
    return inverse(order) - first


def next_use(graph: Graph, gradients: Gradients) -> Ids:
    """The task of the next step that first uses each parameter, else the start of that step."""
    keys = list(zip(gradients.step.tolist(), order_of_use(gradients).tolist(), strict=True))
    uses = {key: task for key, task in zip(keys, gradients.used.tolist(), strict=True) if task >= 0}
    following = dict(zip(graph.window.steps, graph.window.steps[1:], strict=False))
    begins = begins_next(graph)
    return np.array([uses.get((following.get(step), at), begins[step]) for step, at in keys])


CHANGE = Change(
    p3,
    group="Distributed training",
    basis="a cost model of the network that you describe",
    assumptions=(
        "workers are also servers, ready at the same time; adding takes servers no time",
        "the slices of the last step are back before it ends; with a single step, all of them",
    ),
    error=0.27,
    error_source=OURS,
    ranked=False,
    one_rank=True,
)
