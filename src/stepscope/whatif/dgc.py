"""`dgc`: what if only the largest gradients were sent?"""

from __future__ import annotations

from typing import Any

import numpy as np

from stepscope.errors import ChangeError
from stepscope.graph import Graph, insert, numbers_after, redirect, scale
from stepscope.whatif.collectives import all_reduces
from stepscope.whatif.roofline import memory_rate, rates_of_graph

# Lin et al., algorithm 4 and section 3, in reads and writes of the whole gradient: momentum
# u = m u + g (3), accumulation v = v + u (3), threshold on a sample of |v| (1), choice of what is
# sent (1), and what was sent taken out of u and v (4).
_COMPRESS_PASSES = 12
_DECOMPRESS_PASSES = 1  # a gradient of zeros, into which few values are put


def dgc(graph: Graph, ratio: float = 0.001) -> Graph:
    """Deep gradient compression: all-reduces shrink, and kernels compress and unpack around them.

    Args:
        graph: of steps that all-reduce, or after `ddp`.
        ratio: which part of the gradients is sent; each with its place, so twice as many bytes.

    Raises:
        ChangeError: if nothing is all-reduced, or the bytes or the speed of memory are not known.

    Source: DAYDREAM sections 5.2 and A.10, algorithm 12; Lin et al., "Deep gradient compression",
    ICLR 2018.
    """
    if not 0 < ratio <= 0.5:
        raise ChangeError(f"dgc: expected a ratio above 0 and at most 0.5, found {ratio}")
    reduces = all_reduces(graph)
    if not reduces.any():
        raise ChangeError("dgc: no all-reduce in these steps; put ddp before it")
    size = graph.tasks["bytes"][reduces]
    if (size < 0).any():
        raise ChangeError("dgc: the trace does not tell how many bytes are all-reduced")
    pass_ns = size / _rate(graph)
    tasks = np.flatnonzero(reduces)
    graph = scale(graph, reduces, 2 * ratio)
    count = len(tasks)
    kernel: dict[str, Any] = {"category": "kernel", "kind": "elementwise"}
    graph, first = insert(
        graph, tasks, ["compress"] * count, in_front=True,
        duration_ns=np.rint(_COMPRESS_PASSES * pass_ns), **kernel,
    )  # fmt: skip
    tasks = numbers_after(len(graph), first)[tasks]
    graph, last = insert(
        graph, tasks, ["decompress"] * count,
        duration_ns=np.rint(_DECOMPRESS_PASSES * pass_ns), **kernel,
    )  # fmt: skip
    return redirect(graph, numbers_after(len(graph), last)[tasks], last)


def _rate(graph: Graph) -> float:
    """Bytes a nanosecond: of this step's own elementwise work, else of the device's data sheet."""
    rates = rates_of_graph(graph)
    rate = memory_rate(graph) or (rates["bandwidth"] if rates else None)
    if not rate:
        raise ChangeError("dgc: how fast memory is, neither shapes nor the device's name tell")
    return float(rate)
