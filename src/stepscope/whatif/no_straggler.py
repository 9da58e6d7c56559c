"""`no_straggler`: what if no rank were slower than most?"""

from __future__ import annotations

import numpy as np

from stepscope.errors import ChangeError
from stepscope.graph import Graph, scale

_ALIKE = 0.99


def no_straggler(graph: Graph) -> Graph:
    """Ranks that work longer than the median rank work as long as it does.

    A rank works in its kernels and copies; where it has none, on the CPU. What slower ranks do on
    the CPU beside their device shrinks alike.

    Raises:
        ChangeError: if there is one rank only, or none works longer than the others.
    """
    rank = graph.threads["rank"][graph.tasks["thread"]]
    ranks = np.unique(rank)
    if len(ranks) < 2:
        raise ChangeError("no_straggler: one rank alone; open the folder of all ranks")
    work = ~graph.tasks.text("category").mask("communication")
    device = work & graph.on_device
    counts = device if device.any() else work
    busy = np.array([graph.tasks["duration_ns"][counts & (rank == one)].sum() for one in ranks])
    factor = np.minimum(np.median(busy) / np.maximum(busy, 1), 1)
    if (factor > _ALIKE).all():
        raise ChangeError("no_straggler: every rank works about as long as the median rank")
    return scale(graph, work, factor[np.searchsorted(ranks, rank)][work], gaps=True)
