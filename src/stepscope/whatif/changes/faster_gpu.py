"""`faster_gpu`: the same step on another device."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from stepscope.arrays import Floats
from stepscope.errors import ChangeError
from stepscope.graph import Graph, scale
from stepscope.roofline import known_gpus, rates_of
from stepscope.whatif.change import Change
from stepscope.whatif.parts.kernel_times import (
    compute_bound,
    device_of,
    memory_bound,
    precision_of_tasks,
    times_ns,
    work_of_tasks,
)

Rates = Mapping[str, Any]
_PREFERRED = "H100"
_FASTER = 0.99


def faster_gpu(graph: Graph, to: str = "", estimate: str = "typical") -> Graph:
    """Kernels run on the device TO, by the peak rates of both devices.

    If an operator's shapes were recorded, by the rooflines of both devices; else by the ratio of
    compute (in its precision) or memory bandwidth, depending on the kind of kernel. Peak rates and
    their sources: `roofline/data/gpus.json`.

    Args:
        graph: any graph.
        to: a device of `data/gpus.json`; by default H100, or the next one that is faster.
        estimate: `typical`; `low` applies the smallest of the ratios to all kernels.

    Raises:
        ChangeError: if the rates of either device are unknown.
    """
    if estimate not in ("low", "typical"):
        raise ChangeError(f"faster_gpu: expected estimate=low or typical, found {estimate!r}")
    if not graph.on_device.any():
        raise ChangeError("faster_gpu: these steps have no device work")
    old = _rates(str(device_of(graph).get("name", "")))
    ratio = _ratios(graph, old, _rates(to) if to else _faster(graph, old))
    kernels = ~np.isnan(ratio)
    if estimate == "low":
        ratio = np.full(len(graph), ratio[kernels].min())
    return scale(graph, kernels, 1 / ratio[kernels])


def choose_faster(graph: Graph) -> dict[str, str]:
    """The device that the change takes by default, as its parameter `to`."""
    if not graph.on_device.any():
        return {}
    return {"to": str(_faster(graph, _rates(str(device_of(graph).get("name", ""))))["name"])}


def _faster(graph: Graph, old: Rates) -> Rates:
    """The first known device, H100 before others, on which these kernels take less time."""
    time = graph.tasks["duration_ns"]
    for new in sorted(known_gpus(), key=lambda gpu: gpu["name"] != _PREFERRED):
        with suppress(ChangeError):  # a device without one of the rates
            ratio = _ratios(graph, old, new)
            kernels = ~np.isnan(ratio)
            if (time[kernels] / ratio[kernels]).sum() < _FASTER * time[kernels].sum():
                return new
    raise ChangeError(f"faster_gpu: no known device runs these kernels faster than {old['name']}")


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
    parts = (
        (memory_bound(graph), "bandwidth"),
        (compute & half, "half"),
        (compute & tf32, "tf32"),
        (compute & ~half & ~tf32, "fp32"),
    )
    ratio = np.full(len(graph), np.nan)
    for tasks, rate in parts:
        if tasks.any():
            ratio[tasks] = _ratio(old, new, rate)
    return ratio


def _by_work(graph: Graph, old: Rates, new: Rates, otherwise: Floats) -> Floats:
    """Speedup by the rooflines of both devices where a kernel's work is known, else `otherwise`."""
    flops, size = work_of_tasks(graph)
    before, after = (np.maximum(*times_ns(graph, flops, size, rates)) for rates in (old, new))
    known = (before > 0) & (after > 0)
    return np.where(known, before / np.where(known, after, 1), otherwise)


def _ratio(old: Rates, new: Rates, rate: str) -> float:
    if not old[rate] or not new[rate]:
        raise ChangeError(f"faster_gpu: {old['name']} or {new['name']} has no {rate} rate")
    return float(new[rate] / old[rate])


def _rates(name: str) -> Rates:
    if not name:
        raise ChangeError("faster_gpu: the trace does not name its device; name it with --device")
    found = rates_of(name)
    if found is None:
        known = ", ".join(gpu["name"] for gpu in known_gpus())
        raise ChangeError(f"faster_gpu: there are no rates for {name!r}; known devices: {known}")
    return found


CHANGE = Change(
    faster_gpu,
    group="Compute",
    basis="the data sheets of both devices",
    assumptions=(
        "kernels gain what the peak rates of both devices suggest; the CPU stays as it is",
        "copies and collectives take as long as they did",
    ),
    low={"estimate": "low"},
    choose=choose_faster,
)
