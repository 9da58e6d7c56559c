"""`compress`: what if gradients were sent in 16 bits?"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.calibration import find_calibration
from stepscope.errors import ChangeError
from stepscope.graph import Graph, add_links, insert, numbers_after, redirect, scale
from stepscope.whatif.calibrated import copy_rate, on_cpu
from stepscope.whatif.collectives import all_reduces
from stepscope.whatif.kernels import in_half
from stepscope.whatif.roofline import memory_rate, rates_of_graph

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]
_FLOAT = 4  # bytes
_FP32 = "float"
_MOVED = 1.5  # of the gradient's bytes: it is read, and half of it written; and the other way


def compress(graph: Graph) -> Graph:
    """Gradients are cast to 16 bits, all-reduced, and cast back.

    On a device both casts are kernels beside what computes. On a CPU the thread that has filled a
    bucket casts it; the casts back follow the all-reduces on a thread of their own.

    Args:
        graph: of steps that all-reduce FP32, or after `ddp`.

    Raises:
        ChangeError: if nothing is all-reduced, or the bytes or the speed of memory are not known.

    Source: PyTorch, torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py.
    """
    reduces = all_reduces(graph)
    if not reduces.any():
        raise ChangeError("compress: no all-reduce in these steps; put ddp before it")
    reduces &= ~_narrow(graph, np.flatnonzero(reduces))
    if not reduces.any():
        raise ChangeError("compress: no all-reduce of these steps is of FP32")
    size = graph.tasks["bytes"][reduces].astype(np.float64)
    if (size < 0).any():
        raise ChangeError("compress: the trace does not tell how many bytes are all-reduced")
    down, up = _casts_ns(graph, size)
    tasks = np.flatnonzero(reduces)
    graph = scale(graph, reduces, 0.5)
    sent = graph.tasks["bytes"].copy()
    sent[tasks] = size / 2
    graph = graph.with_tasks(bytes=sent)
    if on_cpu(graph):
        graph, tasks = _behind_buckets(graph, tasks, down)
    else:
        graph, first = _casts(graph, tasks, down, in_front=True)
        tasks = numbers_after(len(graph), first)[tasks]
    graph, last = _casts(graph, tasks, up, in_front=False)
    return redirect(graph, numbers_after(len(graph), last)[tasks], last)


def _narrow(graph: Graph, tasks: Ids) -> NDArray[np.bool_]:
    """Collectives of anything but FP32, as their names or their recorded type tell."""
    result = in_half(graph)
    for task in tasks[graph.tasks["event"][tasks] >= 0].tolist():
        arguments = graph.trace.event_arguments(int(graph.tasks["event"][task]))
        result[task] |= str(arguments.get("dtype", _FP32)).lower() not in (_FP32, "float32")
    return result


def _casts(graph: Graph, tasks: Ids, time: Floats, *, in_front: bool) -> tuple[Graph, Ids]:
    kernel: dict[str, Any] = {"category": "kernel", "kind": "elementwise"}
    return insert(
        graph, tasks, ["cast of gradients"] * len(tasks), in_front, duration_ns=np.rint(time),
        **kernel,
    )  # fmt: skip


def _behind_buckets(graph: Graph, tasks: Ids, time: Floats) -> tuple[Graph, Ids]:
    """Each cast behind the last task that its all-reduce waits for; the all-reduces' numbers."""
    links = graph.links
    last = np.full(len(graph), -1, np.int64)
    np.maximum.at(last, links["target"], links["source"].astype(np.int64))
    told = last[tasks] >= 0
    graph, new = insert(
        graph, last[tasks][told], ["cast of gradients"] * int(told.sum()),
        duration_ns=np.rint(time[told]), category="cpu_op", kind="elementwise",
    )  # fmt: skip
    tasks = numbers_after(len(graph), new)[tasks]
    return add_links(graph, new, tasks[told], "communication"), tasks


def _casts_ns(graph: Graph, size: Floats) -> tuple[Floats, Floats]:
    """To 16 bits and back; of a CPU as calibrated, else as fast as bytes are moved."""
    calibration = find_calibration(graph.trace.metadata) if on_cpu(graph) else None
    if calibration is not None and calibration.casts:
        down, up = (
            np.array([calibration.cast_ns(one / _FLOAT, down=to) for one in size.tolist()])
            for to in (True, False)
        )
        return down, up
    rate = copy_rate(graph, float(size.max())) if on_cpu(graph) else None
    moved = 2 * rate if rate else memory_rate(graph)
    rates = rates_of_graph(graph)
    moved = moved or (float(rates["bandwidth"]) if rates else None)
    if not moved:
        raise ChangeError("compress: how fast memory is, neither shapes nor the device's name tell")
    time = _MOVED * size / moved
    return time, time
