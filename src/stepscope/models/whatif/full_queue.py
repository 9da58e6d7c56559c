"""A CPU that waited for room in its device's queue: between the waits it is slower than without.

Calls after a wait find cold caches, and a launch that waits hides what it takes. A change that makes
the device faster ends the waits, so the CPU may then be faster than it was recorded.
"""

from __future__ import annotations

import numpy as np

from stepscope.graph import Graph, scale
from stepscope.graph.graph_schema import LAUNCH, SYNC

# Of the recorded pace, without waits: 31.7 of 45.8 ms for GPT-2 on an H200 with an Intel Xeon, 21.9 of
# 26.1 ms for BERT, 32 of 38 ms for ResNet-50.
_FREE_PACE = 0.7  # of recorded CPU times; the smallest of the three measured ratios is 0.69


def waited_for_room(graph: Graph) -> bool:
    """Whether launches waited for the end of other work, which may not be recorded."""
    links, on_device, event = graph.links, graph.on_device, graph.tasks["event"]
    waits = (links["kind"] == SYNC) & on_device[links["source"]] & ~on_device[links["target"]]
    launches = links["kind"] == LAUNCH
    launched = np.full(len(graph.trace.events) + 1, -1, np.int64)  # the last is for no event
    launched[event[links["target"][launches]]] = event[links["source"][launches]]
    callers = np.setdiff1d(launched, [-1])
    waiting = event[links["target"][waits]]
    own = launched[event[links["source"][waits]]] == waiting  # a copy that its call waits for
    unrecorded = event[~on_device & (graph.tasks["earliest_ns"] > 0)]
    return bool((np.isin(waiting, callers) & ~own).any() or np.isin(unrecorded, callers).any())


def with_free_cpu(graph: Graph) -> Graph:
    """The graph with a CPU as fast as without waits for room, at most."""
    return scale(graph, ~graph.on_device, _FREE_PACE, gaps=True)
