"""`dgc`: deep gradient compression."""

from __future__ import annotations

from typing import Any

import numpy as np

from stepscope.errors import ChangeError
from stepscope.graph import Graph, insert, numbers_after, redirect, scale
from stepscope.whatif.change import Change
from stepscope.whatif.parts.collectives import all_reduces
from stepscope.whatif.parts.kernel_times import memory_rate, rates_of_graph

# Lin et al., algorithm 4 and section 3, in reads and writes of the whole gradient: momentum
# u = m u + g (3), accumulation v = v + u (3), threshold on a sample of |v| (1), choice of what is
# sent (1), and what was sent removed from u and v (4).
_COMPRESS_PASSES = 12
_DECOMPRESS_PASSES = 1  # a gradient of zeros gets a few values


def dgc(graph: Graph, ratio: float = 0.001) -> Graph:
    """Deep gradient compression: all-reduces send the largest gradients only.

    Each value is sent with its index. 12 passes over the gradient compress it before the all-reduce
    and one unpacks it afterwards, as fast as this step's elementwise kernels move bytes.

    Args:
        graph: of steps with all-reduces, measured or added by `ddp`.
        ratio: the share of the gradients that is sent; each with its index, so twice the bytes.

    Raises:
        ChangeError: if there are no all-reduces, or their sizes or the memory bandwidth are
            unknown.

    Source: DAYDREAM sections 5.2 and A.10, algorithm 12; Lin et al., "Deep gradient compression",
    ICLR 2018.
    """
    if not 0 < ratio <= 0.5:
        raise ChangeError(f"dgc: expected ratio above 0 and at most 0.5, found {ratio}")
    reduces = all_reduces(graph)
    if not reduces.any():
        raise ChangeError("dgc: these steps have no all-reduces; put ddp first")
    size = graph.tasks["bytes"][reduces]
    if (size < 0).any():
        raise ChangeError("dgc: the trace does not record the sizes of its all-reduces")
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
    """Bytes per ns: of this step's elementwise work, else of the device's data sheet."""
    rates = rates_of_graph(graph)
    rate = memory_rate(graph) or (rates["bandwidth"] if rates else None)
    if not rate:
        raise ChangeError(
            "dgc: the memory bandwidth is unknown; record shapes, or name the device with --device"
        )
    return float(rate)


CHANGE = Change(
    dgc,
    group="Distributed training",
    basis="the measured transfer by the bytes sent, plus passes at memory bandwidth",
    assumptions=(
        "all-reduces are bandwidth-bound and shrink with the bytes they send",
        "12 passes over the gradient compress and one unpacks it, concurrent with computation",
    ),
)
