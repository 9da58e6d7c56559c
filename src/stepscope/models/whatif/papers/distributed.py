"""Distributed training: parameters in slices (p3), by network level (blueconnect), sparse (dgc)."""

from math import prod

import numpy as np

from stepscope.base.arrays import Floats, Ids
from stepscope.errors import ChangeError
from stepscope.graph import Graph, add_links, add_thread
from stepscope.models.whatif.change import Change
from stepscope.models.whatif.cpu.calibrated import FLOAT_BYTES, CpuPrediction, calibrated, copy_rate, on_cpu
from stepscope.models.whatif.parts.gradients import Gradients, converted, find_gradients
from stepscope.models.whatif.parts.kernel_times import bytes_per_ns
from stepscope.models.whatif.parts.layers import add_channel, begins_next
from stepscope.models.whatif.parts.network import (
    FIXED_COST,
    CollectivePhase,
    Network,
    all_reduces,
    append_collectives,
    decompose,
    refuse_communication,
    refuse_unsized,
)
from stepscope.trace.row_order import inverse, place_in_group

_LEAST_KB = 0.1  # kB of a slice; chosen: smaller ones of a large model are millions of messages


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
        workers: number of workers.
        bandwidth_gbps: of each worker's link in each direction, Gbit/s.
        latency_us: of a message, us.
        slice_kb: size of a slice, kB; the paper's is 50,000 parameters.

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
    number = place_in_group(row)
    return row, np.minimum(most, gradients.bytes[row] - number * most).astype(np.int64)


def _with_slices(graph: Graph, network: Network, gradients: Gradients, row: Ids, size: Ids) -> Graph:
    graph, send = add_channel(graph, "send")
    graph, receive = add_channel(graph, "receive")
    own = _servers(gradients.step[row], size, network.workers) == 0
    # A worker receives the slices that it serves from all others, and sends them to all others.
    time = np.where(own, network.workers - 1, 1) * (size * 8 / network.bandwidth_gbps)
    threads = np.concatenate([np.where(own, receive, send), np.where(own, send, receive)])
    names = [f"{way} {number}" for way in ("push", "pull") for number in row.tolist()]
    both = np.concatenate([row, row])
    facts = {"step": gradients.step[both], "priority": -order_of_use(gradients)[both], "stage": "backward"}
    graph, new = append_collectives(graph, threads, names, np.tile(time, 2), bytes=np.tile(size, 2), **facts)
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
    return inverse(order) - np.searchsorted(gradients.step[order], gradients.step)


def next_use(graph: Graph, gradients: Gradients) -> Ids:
    """The task of the next step that first uses each parameter, else the start of that step."""
    keys = list(zip(gradients.step.tolist(), order_of_use(gradients).tolist(), strict=True))
    uses = {key: task for key, task in zip(keys, gradients.used.tolist(), strict=True) if task >= 0}
    following = dict(zip(graph.window.steps, graph.window.steps[1:], strict=False))
    begins = begins_next(graph)
    return np.array([uses.get((following.get(step), at), begins[step]) for step, at in keys])


def blueconnect(
    graph: Graph,
    factors: str = "4x2",
    gbps: str = "100x10",
    latency_us: float = 5.0,
    one_switch: bool = False,
) -> Graph:
    """All-reduces become reduce-scatters up the network levels and all-gathers down.

    Each level has a channel of its own. Above the first level, the workers of a group below send
    at the same time and share its bandwidth. On a CPU the gradients that a phase received are added
    before the next phase begins.

    Args:
        graph: of steps with all-reduces, measured or added by `ddp`.
        factors: workers in a group at each level, from inside a node outwards.
        gbps: bandwidth at each level, Gbit/s: of a worker within its node, of a node to others,
            and so on; all links of a node together.
        latency_us: of a message, us.
        one_switch: whether each worker has one link, to the switch of all, for every level.

    Source: DAYDREAM sections 5.2 and A.6, algorithm 8; Cho et al., "BlueConnect", MLSys 2019.
    """
    sizes, speeds = (_numbers(*given) for given in (("factors", factors), ("gbps", gbps)))
    if not all(size.is_integer() for size in sizes):
        raise ChangeError(f"blueconnect: expected factors such as 4x2, found {factors!r}")
    if len(sizes) != len(speeds):
        raise ChangeError(f"blueconnect: expected one bandwidth for each factor, found {factors} and {gbps}")
    refuse_unsized(graph, "blueconnect", all_reduces(graph))
    tasks = np.flatnonzero(all_reduces(graph))
    device = int(graph.threads["device"][graph.tasks["thread"][tasks[0]]])
    channels = []
    for level in range(1 if one_switch else len(sizes)):
        graph, channel = add_thread(graph, f"level {level}", "communication", device, ordered=False)
        channels.append(channel)
    scatter, gather = [], []
    for level, (workers, speed) in enumerate(zip(map(int, sizes), speeds, strict=True)):
        below = int(prod(sizes[:level]))
        speed = speed if one_switch else speed / below
        network = Network(workers, speed, latency_us, workers, speed, latency_us)
        part = graph.tasks["bytes"][tasks] / below
        channel = channels[0 if one_switch else level]
        time = network.checked("blueconnect").gather_ns(part)
        received = part * (workers - 1) / workers
        rates = [copy_rate(graph, size) if on_cpu(graph) else None for size in received.tolist()]
        # What is received is added: two reads and a write, where a copy reads and writes.
        added = 1.5 * received / np.array([rate or np.inf for rate in rates])
        scatter.append(CollectivePhase("reduce-scatter", channel, time + added))
        gather.append(CollectivePhase("all-gather", channel, time))
    return decompose(graph, tasks, [*scatter, *reversed(gather)])


def _numbers(name: str, text: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.split("x")]
    except ValueError:
        numbers = []
    if not numbers or not all(number > 0 for number in numbers):
        raise ChangeError(f"blueconnect: expected {name} such as 4x2, found {text!r}")
    return numbers


# Lin et al., algorithm 4 and section 3, in reads and writes of the whole gradient: momentum
# u = m u + g (3), accumulation v = v + u (3), threshold on a sample of |v| (1), choice of what is
# sent (1), and what was sent removed from u and v (4).
_COMPRESS_PASSES = 12  # reads and writes of the whole gradient, as listed above
_DECOMPRESS_PASSES = 1  # a gradient of zeros gets a few values


def dgc(graph: Graph, ratio: float = 0.001, workers: int = 2, latency_us: float = 0.0) -> Graph:
    """Deep gradient compression: workers exchange the largest gradients only.

    Each value is sent with its index, and each worker receives what all others send. On a device
    12 passes over the gradient compress it before it is sent and one unpacks it afterwards, as
    fast as this step's elementwise kernels move bytes. On a CPU the thread that filled a bucket
    compresses it, as calibrated; what was received is added on a thread of its own.

    Args:
        graph: of steps with all-reduces, measured or added by `ddp`.
        ratio: the share of the gradients that is sent; each with its index, so twice the bytes.
        workers: number of workers.
        latency_us: fixed cost of a call where recorded sizes do not show it, us.

    Source: DAYDREAM sections 5.2 and A.10, algorithm 12; Lin et al., "Deep gradient compression",
    ICLR 2018.
    """
    if not 0 < ratio <= 0.5:
        raise ChangeError(f"dgc: expected ratio above 0 and at most 0.5, found {ratio}")
    if workers < 2:
        raise ChangeError(f"dgc: expected at least 2 workers, found {workers}")
    reduces = all_reduces(graph)
    refuse_unsized(graph, "dgc", reduces)
    times = _compression_ns(graph, graph.tasks["bytes"][reduces].astype(np.float64), workers)
    # A ring's all-reduce takes 2 (N - 1) / N of the bytes, all to all N - 1 times what one sends.
    sent, names = (workers * ratio, latency_us), ("compress", "decompress")
    return converted(graph, np.flatnonzero(reduces), sent, names, times)


def _compression_ns(graph: Graph, size: Floats, workers: int) -> tuple[Floats, Floats]:
    """Time to compress gradients of some bytes, and to add up what was received."""
    if on_cpu(graph) and (times := calibrated(graph, "sparse_gradients", size / FLOAT_BYTES, 1, 2, 3)):
        packed, added, emptied = times
        return packed, emptied + workers * added
    pass_ns = size / bytes_per_ns(graph, "dgc")
    return _COMPRESS_PASSES * pass_ns, _DECOMPRESS_PASSES * pass_ns


P3 = Change(
    p3,
    group="Distributed training",
    basis="a cost model of the network that you describe",
    assumptions=(
        "workers are also servers, ready at the same time; adding takes servers no time",
        "the slices of the last step are back before it ends; with a single step, all of them",
    ),
    error=0.27,
    ranked=False,
    one_rank=True,
)

BLUECONNECT = Change(
    blueconnect,
    group="Distributed training",
    basis="a cost model of the network that you describe",
    assumptions=(
        "network levels share no links, unless all workers are at one switch; workers that share a "
        "link are equally fast, and nothing else is lost between phases",
    ),
    error=0.17,
    ranked=False,
    one_rank=True,
)

DGC = Change(
    dgc,
    group="Distributed training",
    basis="the measured transfer by the bytes sent, plus passes at memory bandwidth",
    assumptions=(
        FIXED_COST,
        "12 passes over the gradient compress and one unpacks it, concurrent with computation",
        "on a CPU compressing is not concurrent, and takes what was calibrated with a hundredth sent",
        "the weight update takes as long as before, though momentum is no longer its own",
    ),
    low={"latency_us": 1e6},
    on_cpu=CpuPrediction(),
    error=0.24,
)
