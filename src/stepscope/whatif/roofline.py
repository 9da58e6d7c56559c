"""The roofline: which kernels are bound by compute and which by memory, and their time elsewhere.

A kernel takes at least its operations over the device's peak rate, and its bytes over the memory
bandwidth. The longer of the two binds it (Williams et al., "Roofline", CACM 52(4), 2009).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.annotate.launches import launch_of
from stepscope.graph import Graph
from stepscope.roofline import precisions, rates_of
from stepscope.roofline.operators import Operators
from stepscope.roofline.pieces import PRODUCTS, share_of_operator
from stepscope.roofline.precision import PRECISIONS
from stepscope.trace.table import Text
from stepscope.whatif.kernels import compute_bound

Mask = NDArray[np.bool_]
Floats = NDArray[np.float64]


def work_of_tasks(graph: Graph) -> tuple[Floats, Floats]:
    """Operations and bytes of every task, float64, shape (tasks,); nan where not known.

    A task does the work of the innermost operator around it, or around its launch, whose work is
    known. Of the several tasks of one operator each does its share by time; where one of them
    multiplies matrices, the operations are its own.
    """
    operators, operator = Operators.of(graph.trace), _operators(graph)
    flops, size = np.append(operators.flops, np.nan), np.append(operators.bytes, np.nan)
    time = np.maximum(graph.tasks["duration_ns"], 1).astype(np.float64)
    multiplies = np.isin(graph.tasks["kind"], PRODUCTS)
    return (
        flops[operator] * share_of_operator(operator, time, multiplies),
        size[operator] * share_of_operator(operator, time),
    )


def bound_by_memory(graph: Graph) -> Mask:
    """Kernels that are bound by memory, bool, shape (tasks,).

    By the roofline of the device where work and device are known, else by kind: all but matrix
    products, convolutions and attention.
    """
    kernels = graph.on_device & graph.tasks.text("category").mask("kernel")
    rates = rates_of_graph(graph)
    by_kind = ~compute_bound(graph)
    if rates is None:
        return kernels & by_kind
    flops, size = work_of_tasks(graph)
    computing, moving = times_ns(graph, flops, size, rates)
    told = ~np.isnan(computing + moving)
    return kernels & np.where(told, moving > computing, by_kind)


def precision_of_tasks(graph: Graph) -> Text:
    """`half`, `tf32`, `fp32` or nothing, for tasks that are products."""
    width = np.append(Operators.of(graph.trace).width, np.int8(0))[_operators(graph)]
    return precisions(graph.tasks.text("name"), width)


def times_ns(
    graph: Graph, flops: Floats, size: Floats, rates: Mapping[str, Any]
) -> tuple[Floats, Floats]:
    """The least time in which a device computes the operations, and moves the bytes, ns."""
    peak = np.full(len(graph), rates["fp32"] or np.nan, np.float64)
    multiplies, precision = np.isin(graph.tasks["kind"], PRODUCTS), precision_of_tasks(graph)
    for name in PRECISIONS:
        peak[multiplies & precision.mask(name)] = rates[name] or np.nan
    peak[multiplies & precision.mask("")] = np.nan
    return flops / (peak * 1e3), size / rates["bandwidth"]


def memory_rate(graph: Graph) -> float | None:
    """Bytes a nanosecond that the graph's own elementwise work moves, None where not known.

    The median over the tasks in the longer half, weighted by time: short ones are all launch. Of
    tasks of one name and about one size the fastest tells: what disturbs one only makes it longer.
    """
    _, size = work_of_tasks(graph)
    plain = graph.tasks.text("kind").mask("elementwise", "optimizer")
    time = graph.tasks["duration_ns"]
    rows = np.flatnonzero(plain & ~np.isnan(size) & (time > 0))
    if not len(rows):
        return None
    rows = rows[time[rows] >= np.median(time[rows])]
    alike = np.stack([graph.tasks["name"][rows], np.rint(2 * np.log2(size[rows]))])
    _, group = np.unique(alike, axis=1, return_inverse=True)
    best = np.zeros(group.max() + 1)
    np.maximum.at(best, group.ravel(), size[rows] / time[rows])
    rate = best[group.ravel()]
    order = np.argsort(rate)
    passed = np.cumsum((size[rows] / rate)[order])
    return float(rate[order][np.searchsorted(passed, passed[-1] / 2)])


def rates_of_graph(graph: Graph) -> dict[str, Any] | None:
    """Peak rates of the device that the graph was measured on, None where they are not known."""
    from stepscope.whatif.devices import device_of

    return rates_of(str(device_of(graph).get("name", "")))


def _operators(graph: Graph) -> NDArray[np.int64]:
    """For each task the innermost operator around it, or its launch, of known work; or -1."""
    event, works = graph.tasks["event"], graph.on_device
    works = (works if works.any() else np.ones(len(graph), np.bool_)) & (event >= 0)
    caller = launch_of(graph.trace)[event[works]]
    operator = np.full(len(graph), -1, np.int64)
    host = np.where(caller >= 0, caller, event[works])
    operator[works] = Operators.of(graph.trace).known_around(host)
    return operator
