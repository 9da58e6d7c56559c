"""`blueconnect`: all-reduces split over the levels of the network."""

from __future__ import annotations

from math import prod

import numpy as np

from stepscope.arrays import Floats, Ids
from stepscope.errors import ChangeError
from stepscope.graph import Graph, add_thread
from stepscope.whatif.change import OURS, Change
from stepscope.whatif.parts.cpu_calibration import copy_rate, on_cpu
from stepscope.whatif.parts.graph_collectives import CollectivePhase, all_reduces, decompose
from stepscope.whatif.parts.network import Network


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

    Raises:
        ChangeError: if there are no all-reduces, their sizes are unknown, or the levels do not fit.

    Source: DAYDREAM sections 5.2 and A.6, algorithm 8; Cho et al., "BlueConnect", MLSys 2019.
    """
    sizes, speeds = _integers("factors", factors), _numbers("gbps", gbps)
    if len(sizes) != len(speeds):
        raise ChangeError("blueconnect: expected one bandwidth for each factor, found "
                          f"{factors} and {gbps}")  # fmt: skip
    tasks = np.flatnonzero(all_reduces(graph))
    if not len(tasks):
        raise ChangeError("blueconnect: these steps have no all-reduces; put ddp first")
    if (graph.tasks["bytes"][tasks] < 0).any():
        raise ChangeError("blueconnect: the trace does not record the sizes of its all-reduces")
    graph, channels = _channels(graph, tasks, 1 if one_switch else len(sizes))
    scatter, gather = [], []
    for level, (workers, speed) in enumerate(zip(sizes, speeds, strict=True)):
        below = prod(sizes[:level])
        speed = speed if one_switch else speed / below
        network = Network(workers, speed, latency_us, workers, speed, latency_us)
        part = graph.tasks["bytes"][tasks] / below
        channel = channels[0 if one_switch else level]
        time = network.checked("blueconnect").gather_ns(part)
        added = _adding_ns(graph, part * (workers - 1) / workers)
        scatter.append(CollectivePhase("reduce-scatter", channel, time + added))
        gather.append(CollectivePhase("all-gather", channel, time))
    return decompose(graph, tasks, [*scatter, *reversed(gather)])


def _adding_ns(graph: Graph, size: Floats) -> Floats:
    """Time to add `size` received bytes: two reads and a write, where a copy reads and writes."""
    rates = [copy_rate(graph, one) if on_cpu(graph) else None for one in size.tolist()]
    return np.array(
        [1.5 * one / rate if rate else 0.0 for one, rate in zip(size, rates, strict=True)]
    )


def _channels(graph: Graph, tasks: Ids, count: int) -> tuple[Graph, list[int]]:
    """Add channels to the device that runs the all-reduces."""
    device = int(graph.threads["device"][graph.tasks["thread"][tasks[0]]])
    channels = []
    for level in range(count):
        graph, channel = add_thread(graph, f"level {level}", "communication", device, ordered=False)
        channels.append(channel)
    return graph, channels


def _integers(name: str, text: str) -> list[int]:
    found = _numbers(name, text)
    if not all(value.is_integer() for value in found):
        raise ChangeError(f"blueconnect: expected {name} such as 4x2, found {text!r}")
    return [int(value) for value in found]


def _numbers(name: str, text: str) -> list[float]:
    try:
        found = [float(part) for part in text.split("x")]
    except ValueError:
        found = []
    if not found or not all(value > 0 for value in found):
        raise ChangeError(f"blueconnect: expected {name} such as 4x2, found {text!r}")
    return found


CHANGE = Change(
    blueconnect,
    group="Distributed training",
    basis="a cost model of the network that you describe",
    assumptions=(
        "network levels share no links, unless all workers are at one switch; workers that share a "
        "link are equally fast, and nothing else is lost between phases",
    ),
    error=0.17,
    error_source=OURS,
    ranked=False,
    one_rank=True,
)
