"""`p3`: what if parameters were sent in slices, those that are needed first before others?"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.errors import ChangeError
from stepscope.graph import Graph, add_links, append
from stepscope.trace.order import inverse
from stepscope.whatif.ddp import refuse_communication
from stepscope.whatif.gradients import Gradients, find_gradients
from stepscope.whatif.layers import add_channel, begins_next
from stepscope.whatif.network import Network

Ids = NDArray[np.int64]
_LEAST_KB = 0.1


def p3(
    graph: Graph,
    workers: int = 4,
    bandwidth_gbps: float = 10.0,
    latency_us: float = 20.0,
    slice_kb: float = 200.0,
) -> Graph:
    """Priority-based parameter propagation: slices are pushed and pulled by order of next use.

    Each of the workers is a server too, for every n-th slice. A worker pushes a slice as soon as it
    is there and has it back before the parameter's forward in the next step; of the slices that
    wait for the network, the one that forward needs first goes first.

    Args:
        graph: of training steps of one worker.
        workers: how many there are then.
        bandwidth_gbps: of each worker's link in each direction, Gbit/s.
        latency_us: of a message.
        slice_kb: size of a slice, kB; the paper's is 50,000 parameters.

    Raises:
        ChangeError: if the gradients, or where their parameters are used, are not known, or the
            steps communicate already.

    Source: DAYDREAM sections 5.1 and A.5, algorithm 7; Jayarajan et al., "Priority-based parameter
    propagation", MLSys 2019.
    """
    network = Network(workers, 1, bandwidth_gbps, latency_us).checked("p3")
    if slice_kb < _LEAST_KB:
        raise ChangeError(f"p3: expected slices of at least {_LEAST_KB} kB, found {slice_kb}")
    refuse_communication(graph, "p3")
    gradients = find_gradients(graph, "p3")
    if (gradients.used < 0).all():
        raise ChangeError("p3: where forward uses the parameters is not known")
    parameter, size = _slices(gradients, slice_kb * 1e3)
    return _with_slices(graph, network, gradients, parameter, size)


def _slices(gradients: Gradients, most: float) -> tuple[Ids, Ids]:
    """Of each slice the row of its gradient, and its bytes."""
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
    own = np.arange(len(row)) % network.workers == 0
    # What this worker serves it receives from all the others, and sends to all of them.
    messages = np.where(own, network.workers - 1, 1)
    time = messages * (size * 8 / network.bandwidth_gbps) + network.latency_us * 1e3
    threads = np.concatenate([np.where(own, receive, send), np.where(own, send, receive)])
    names = [f"{what} {number}" for what in ("push", "pull") for number in row.tolist()]
    both = np.concatenate([row, row])
    graph, new = append(
        graph, threads, names, duration_ns=np.rint(np.tile(time, 2)), bytes=np.tile(size, 2),
        step=gradients.step[both], priority=-order_of_use(gradients)[both],
        category="communication", kind="communication", stage="backward",
    )  # fmt: skip
    push, pull = new[: len(row)], new[len(row) :]
    graph = add_links(graph, gradients.ready[row], push, "communication")
    graph = add_links(graph, push, pull, "communication")
    return add_links(graph, pull, next_use(graph, gradients)[row], "communication")


def order_of_use(gradients: Gradients) -> Ids:
    """The place of each parameter among those of its step, in the order in which forward uses them.

    One of which no use is known comes last.
    """
    used = np.where(gradients.used < 0, np.iinfo(np.int64).max, gradients.used)
    order = np.lexsort((used, gradients.step))
    first = np.searchsorted(gradients.step[order], gradients.step)
    return inverse(order) - first


def next_use(graph: Graph, gradients: Gradients) -> Ids:
    """The task of the next step that first uses each parameter, else where that step begins."""
    keys = list(zip(gradients.step.tolist(), order_of_use(gradients).tolist(), strict=True))
    uses = {key: task for key, task in zip(keys, gradients.used.tolist(), strict=True) if task >= 0}
    following = dict(zip(graph.window.steps, graph.window.steps[1:], strict=False))
    begins = begins_next(graph)
    return np.array([uses.get((following.get(step), at), begins[step]) for step, at in keys])
