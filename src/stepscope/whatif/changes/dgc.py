"""`dgc`: deep gradient compression."""

from __future__ import annotations

from typing import Any

import numpy as np

from stepscope.arrays import Floats, Ids
from stepscope.calibration import find_calibration
from stepscope.calibration.calibration import between
from stepscope.errors import ChangeError
from stepscope.graph import Graph, insert, numbers_after, redirect, scale
from stepscope.whatif.change import OURS, Change
from stepscope.whatif.parts.buckets import after_filling
from stepscope.whatif.parts.cpu_calibration import on_cpu
from stepscope.whatif.parts.graph_collectives import all_reduces
from stepscope.whatif.parts.kernel_times import memory_rate, rates_of_graph

# Lin et al., algorithm 4 and section 3, in reads and writes of the whole gradient: momentum
# u = m u + g (3), accumulation v = v + u (3), threshold on a sample of |v| (1), choice of what is
# sent (1), and what was sent removed from u and v (4).
_COMPRESS_PASSES = 12
_DECOMPRESS_PASSES = 1  # a gradient of zeros gets a few values
_FLOAT = 4  # bytes
_KERNEL: dict[str, Any] = {"category": "kernel", "kind": "elementwise"}


def dgc(graph: Graph, ratio: float = 0.001, workers: int = 2) -> Graph:
    """Deep gradient compression: workers exchange the largest gradients only.

    Each value is sent with its index, and each worker receives what all others send. On a device
    12 passes over the gradient compress it before it is sent and one unpacks it afterwards, as
    fast as this step's elementwise kernels move bytes. On a CPU the thread that filled a bucket
    compresses it, as calibrated; what was received is added on a thread of its own.

    Args:
        graph: of steps with all-reduces, measured or added by `ddp`.
        ratio: the share of the gradients that is sent; each with its index, so twice the bytes.
        workers: number of workers.

    Raises:
        ChangeError: if there are no all-reduces, or their sizes or the memory bandwidth are
            unknown.

    Source: DAYDREAM sections 5.2 and A.10, algorithm 12; Lin et al., "Deep gradient compression",
    ICLR 2018.
    """
    if not 0 < ratio <= 0.5:
        raise ChangeError(f"dgc: expected ratio above 0 and at most 0.5, found {ratio}")
    if workers < 2:
        raise ChangeError(f"dgc: expected at least 2 workers, found {workers}")
    reduces = all_reduces(graph)
    if not reduces.any():
        raise ChangeError("dgc: these steps have no all-reduces; put ddp first")
    size = graph.tasks["bytes"][reduces].astype(np.float64)
    if (size < 0).any():
        raise ChangeError("dgc: the trace does not record the sizes of its all-reduces")
    packed, unpacked = _times(graph, size, workers)
    tasks = np.flatnonzero(reduces)
    # A ring's all-reduce takes 2 (N - 1) / N of the bytes, all to all N - 1 times what one sends.
    graph = scale(graph, reduces, workers * ratio)
    sent = graph.tasks["bytes"].copy()
    sent[tasks] = np.rint(workers * ratio * size)
    graph, tasks = _with_compression(graph.with_tasks(bytes=sent), tasks, packed)
    graph, last = insert(
        graph, tasks, ["decompress"] * len(tasks), duration_ns=np.rint(unpacked), **_KERNEL
    )
    return redirect(graph, numbers_after(len(graph), last)[tasks], last)


def _with_compression(graph: Graph, tasks: Ids, time: Floats) -> tuple[Graph, Ids]:
    """Compress before each all-reduce; the graph, and the all-reduces in it."""
    names = ["compress"] * len(tasks)
    if on_cpu(graph):
        return after_filling(graph, tasks, names, time)
    graph, new = insert(graph, tasks, names, in_front=True, duration_ns=np.rint(time), **_KERNEL)
    return graph, numbers_after(len(graph), new)[tasks]


def _times(graph: Graph, size: Floats, workers: int) -> tuple[Floats, Floats]:
    """Time to compress gradients of some bytes, and to add up what was received."""
    found = find_calibration(graph.trace.metadata) if on_cpu(graph) else None
    if found is None or not found.sparse_gradients:
        pass_ns = size / _rate(graph)
        return _COMPRESS_PASSES * pass_ns, _DECOMPRESS_PASSES * pass_ns
    packed, added, emptied = (
        np.array([between(found.sparse_gradients, one / _FLOAT, column) for one in size.tolist()])
        for column in (1, 2, 3)
    )
    return packed, emptied + workers * added


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
        "on a CPU compressing is not concurrent, and takes what was calibrated with a hundredth "
        "sent",
        "the weight update takes as long as before, though momentum is no longer its own",
    ),
    is_calibrated=True,
    error=0.24,
    error_source=OURS,
)
