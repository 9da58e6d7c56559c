"""How long the kernels of a graph take on another device.

A kernel takes a fixed time, and its roofline time over an efficiency that both devices share.

Source: Yu et al., "Habitat", USENIX ATC 2021, section 4, without its waves of blocks, which traces
do not record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from stepscope.arrays import Floats
from stepscope.errors import ChangeError
from stepscope.graph import Graph
from stepscope.whatif.parts.kernel_times import (
    compute_bound,
    memory_bound,
    peak_rate,
    precision_of_tasks,
    times_ns,
    work_of_tasks,
)

Rates = Mapping[str, Any]
FIXED_NS = 5000  # of a kernel, on any device: docs/evidence/accuracy/other_devices.md
SCALING_ERROR = 1.6  # kernels took at most so many times as long or as short as predicted


def scaled_kernels_ns(graph: Graph, old: Rates, new: Rates) -> Floats:
    """Duration of each kernel on another device, ns; nan for other tasks.

    Raises:
        ChangeError: if a rate of either device is unknown.
    """
    time = graph.tasks["duration_ns"].astype(np.float64)
    fixed = np.minimum(time, FIXED_NS)
    return np.asarray(fixed + (time - fixed) / _ratios(graph, old, new), np.float64)


def _ratios(graph: Graph, old: Rates, new: Rates) -> Floats:
    """The speedup of each kernel on another device; nan for other tasks."""
    ratio = _by_kind(graph, old, new)
    kernels = ~np.isnan(ratio)
    if not kernels.any():
        raise ChangeError("faster_gpu: these steps have no kernels")
    return np.where(kernels, _by_work(graph, old, new, ratio), ratio)


def _by_kind(graph: Graph, old: Rates, new: Rates) -> Floats:
    """Speedup of each kernel by its kind and precision; nan for other tasks."""
    compute, precision = compute_bound(graph), precision_of_tasks(graph)
    half, tf32 = precision.mask("half"), precision.mask("tf32")
    ratio = np.full(len(graph), np.nan)
    ratio[memory_bound(graph)] = new["bandwidth"] / old["bandwidth"]
    parts = ((compute & half, "half"), (compute & tf32, "tf32"), (compute & ~half & ~tf32, "fp32"))
    for tasks, rate in parts:
        if tasks.any():
            ratio[tasks] = _ratio(old, new, rate)
    return ratio


def _by_work(graph: Graph, old: Rates, new: Rates, otherwise: Floats) -> Floats:
    """Speedup by the rooflines of both devices where a kernel's work is known, else `otherwise`."""
    flops, size = graph.once(work_of_tasks)
    before, after = (np.maximum(*times_ns(graph, flops, size, rates)) for rates in (old, new))
    known = (before > 0) & (after > 0)
    return np.where(known, before / np.where(known, after, 1), otherwise)


def _ratio(old: Rates, new: Rates, precision: str) -> float:
    before, after = peak_rate(old, precision), peak_rate(new, precision)
    if not before or not after:
        raise ChangeError(f"faster_gpu: {old['name']} or {new['name']} has no {precision} rate")
    return after / before
