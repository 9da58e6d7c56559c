"""`blueconnect`: all-reduces split over the levels of the network."""

from __future__ import annotations

from math import prod

import numpy as np

from stepscope.errors import ChangeError
from stepscope.graph import Graph, add_thread
from stepscope.whatif.change import Change
from stepscope.whatif.parts.collectives import Phase, all_reduces, decompose
from stepscope.whatif.parts.network import Network


def blueconnect(
    graph: Graph, factors: str = "4x2", gbps: str = "100x10", latency_us: float = 5.0
) -> Graph:
    """All-reduces become reduce-scatters up the network levels and all-gathers down.

    Each level has a channel of its own.

    Args:
        graph: of steps with all-reduces, measured or added by `ddp`.
        factors: workers in a group at each level, from inside a node outwards.
        gbps: bandwidth of a link at each level, Gbit/s.
        latency_us: of a message, us.

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
    device = int(graph.threads["device"][graph.tasks["thread"][tasks[0]]])
    up = []
    for level, (workers, speed) in enumerate(zip(sizes, speeds, strict=True)):
        network = Network(workers, speed, latency_us, workers, speed, latency_us)
        part = graph.tasks["bytes"][tasks] / prod(sizes[:level])
        graph, channel = add_thread(graph, f"level {level}", "communication", device, ordered=False)
        up.append((channel, network.checked("blueconnect").gather_ns(part)))
    scatter = [Phase("reduce-scatter", *level) for level in up]
    gather = [Phase("all-gather", *level) for level in reversed(up)]
    return decompose(graph, tasks, [*scatter, *gather])


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
    assumptions=("network levels share no links; nothing is lost between phases",),
    ranked=False,
    one_rank=True,
)
