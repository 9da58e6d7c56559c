"""The roofline: which kernels are bound by compute and which by memory, and their time elsewhere.

A kernel takes at least its operations over the device's peak rate, and its bytes over the memory
bandwidth. The longer of the two binds it (Williams et al., "Roofline", CACM 52(4), 2009).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.graph import Graph
from stepscope.trace.nesting import inherit
from stepscope.whatif.kernels import compute_bound, in_half, in_tf32
from stepscope.whatif.work import COMPUTE_KINDS, work_of_operators

Mask = NDArray[np.bool_]
Floats = NDArray[np.float64]


def work_of_tasks(graph: Graph) -> tuple[Floats, Floats]:
    """Operations and bytes of every task, float64, shape (tasks,); nan where not known.

    A task does the work of the innermost operator around it, or around its launch, whose work is
    known. Of the several tasks of one operator each does its share by time; where one of them
    multiplies matrices, the operations are its own.
    """
    flops, size = work_of_operators(graph.trace)
    operator = _operators(graph, ~np.isnan(size))
    known = operator >= 0
    time = np.maximum(graph.tasks["duration_ns"], 1).astype(np.float64)
    multiplies = np.isin(graph.tasks["kind"], COMPUTE_KINDS)
    return (
        np.where(known, flops[operator] * _share(operator, time, multiplies), np.nan),
        np.where(known, size[operator] * _share(operator, time), np.nan),
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


def times_ns(
    graph: Graph, flops: Floats, size: Floats, rates: Mapping[str, Any]
) -> tuple[Floats, Floats]:
    """The least time in which a device computes the operations, and moves the bytes, ns."""
    peak = np.full(len(graph), rates["fp32"] or np.nan, np.float64)
    multiplies = np.isin(graph.tasks["kind"], COMPUTE_KINDS)
    for precise, name in ((in_tf32(graph), "tf32"), (in_half(graph), "half")):
        peak[multiplies & precise] = rates[name] or np.nan
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


def rates_of(name: str) -> dict[str, Any] | None:
    """Peak rates by a device's name, short or as traces have it, from `data/gpus.json`."""
    known = (
        gpu
        for gpu in known_gpus()
        if gpu["name"].lower() == name.lower() or _is_in(gpu["match"], name)
    )
    return next(known, None)


def _is_in(known: str, name: str) -> bool:
    """Whether a name holds another as words of its own: a GH200 is no H200, an A1000 no A100."""
    words = rf"(?<![A-Za-z0-9]){re.escape(known)}(?![A-Za-z0-9])"
    return re.search(words, name, re.IGNORECASE) is not None


@cache
def known_gpus() -> tuple[dict[str, Any], ...]:
    """Every device of `data/gpus.json`."""
    text = files("stepscope.whatif").joinpath("data/gpus.json").read_text("utf-8")
    return tuple(json.loads(text)["gpus"])


def _operators(graph: Graph, known: Mask) -> NDArray[np.int64]:
    """For each task the innermost operator around it, or its launch, of known work; or -1."""
    trace = graph.trace
    inner = inherit(trace.events["parent"], np.where(known, trace.events["id"], -1)).astype(
        np.int64
    )
    launches = trace["launches"]
    inner[launches["device_event"]] = inner[launches["cpu_event"]]
    operator: NDArray[np.int64] = np.append(inner, -1)[graph.tasks["event"]]
    works = graph.on_device if graph.on_device.any() else np.ones(len(graph), np.bool_)
    return np.where(works, operator, -1)


def _share(operator: NDArray[np.int64], time: Floats, prefer: Mask | None = None) -> Floats:
    """Each task's part of its operator's time; only of the preferred tasks, where there are any."""
    count = int(operator.max(initial=-1)) + 2
    if prefer is not None:
        some = np.bincount(operator[prefer] + 1, minlength=count) > 0
        time = np.where(some[operator + 1] & ~prefer, 0, time)
    total = np.bincount(operator + 1, time, count)
    return np.asarray(time / np.maximum(total[operator + 1], 1e-9), np.float64)
