"""`blueconnect`: what if all-reduces were split over the levels of the network?"""

from __future__ import annotations

from math import prod

import numpy as np

from stepscope.errors import ChangeError
from stepscope.graph import Graph, add_thread
from stepscope.whatif.collectives import Phase, all_reduces, decompose
from stepscope.whatif.network import Network


def blueconnect(
    graph: Graph, factors: str = "4x2", gbps: str = "100x10", latency_us: float = 5.0
) -> Graph:
    """Each all-reduce becomes reduce-scatters up the levels and all-gathers down, a channel each.

    Args:
        graph: of steps that all-reduce, or after `ddp`.
        factors: how many workers form a group at each level, from within a node outwards.
        gbps: bandwidth of a link at each level, Gbit/s.
        latency_us: of a message.

    Raises:
        ChangeError: if nothing is all-reduced, the sizes are not known, or the levels do not fit.

    Source: DAYDREAM sections 5.2 and A.6, algorithm 8; Cho et al., "BlueConnect", MLSys 2019.
    """
    sizes, speeds = _whole("factors", factors), _numbers("gbps", gbps)
    if len(sizes) != len(speeds):
        raise ChangeError("blueconnect: expected as many bandwidths as factors, found "
                          f"{factors} and {gbps}")  # fmt: skip
    tasks = np.flatnonzero(all_reduces(graph))
    if not len(tasks):
        raise ChangeError("blueconnect: no all-reduce in these steps; put ddp before it")
    if (graph.tasks["bytes"][tasks] < 0).any():
        raise ChangeError("blueconnect: the trace does not tell how many bytes are all-reduced")
    device = int(graph.threads["device"][graph.tasks["thread"][tasks[0]]])
    up = []
    for level, (workers, speed) in enumerate(zip(sizes, speeds, strict=True)):
        network = Network(workers, workers, speed, latency_us, speed, latency_us)
        part = graph.tasks["bytes"][tasks] / prod(sizes[:level])
        graph, channel = add_thread(graph, f"level {level}", "communication", device, ordered=False)
        up.append((channel, network.checked("blueconnect").gather_ns(part)))
    scatter = [Phase("reduce-scatter", *one) for one in up]
    gather = [Phase("all-gather", *one) for one in reversed(up)]
    return decompose(graph, tasks, [*scatter, *gather])


def _whole(name: str, text: str) -> list[int]:
    found = _numbers(name, text)
    if not all(one.is_integer() for one in found):
        raise ChangeError(f"blueconnect: expected {name} as 4x2, found {text!r}")
    return [int(one) for one in found]


def _numbers(name: str, text: str) -> list[float]:
    try:
        found = [float(part) for part in text.split("x")]
    except ValueError:
        found = []
    if not found or not all(one > 0 for one in found):
        raise ChangeError(f"blueconnect: expected {name} as 4x2, found {text!r}")
    return found
