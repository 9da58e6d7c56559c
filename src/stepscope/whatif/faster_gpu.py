"""`faster_gpu`: what if the same step ran on another device?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.errors import ChangeError
from stepscope.graph import Graph, scale
from stepscope.roofline import known_gpus, rates_of
from stepscope.whatif.devices import device_of
from stepscope.whatif.kernels import compute_bound, memory_bound
from stepscope.whatif.roofline import precision_of_tasks, times_ns, work_of_tasks

Rates = Mapping[str, Any]
Floats = NDArray[np.float64]


def faster_gpu(graph: Graph, to: str = "H100", estimate: str = "typical") -> Graph:
    """Kernels run on the device TO: by its compute or its memory bandwidth against this one's.

    Where the shapes that an operator was given tell its operations and bytes, each device takes the
    longer of the two; else what a kernel computes tells which of them binds it.

    Args:
        graph: any graph.
        to: a device of `data/gpus.json`.
        estimate: `typical`; `low` takes the least of the ratios in use for every kernel.

    Raises:
        ChangeError: if the rates of either device are not known.
    """
    if estimate not in ("low", "typical"):
        raise ChangeError(f"faster_gpu: expected estimate low or typical, found {estimate!r}")
    if not graph.on_device.any():
        raise ChangeError("faster_gpu: no work on a device in these steps")
    old, new = _rates(str(device_of(graph).get("name", ""))), _rates(to)
    ratio = _by_kind(graph, old, new)
    kernels = ~np.isnan(ratio)
    if not kernels.any():
        raise ChangeError("faster_gpu: no kernel in these steps")
    ratio = np.where(kernels, _by_work(graph, old, new, ratio), ratio)
    if estimate == "low":
        ratio = np.full(len(graph), ratio[kernels].min())
    return scale(graph, kernels, 1 / ratio[kernels])


def _by_kind(graph: Graph, old: Rates, new: Rates) -> Floats:
    """How many times faster each kernel is by its kind and precision; nan for other tasks."""
    compute, precision = compute_bound(graph), precision_of_tasks(graph)
    half, tf32 = precision.mask("half"), precision.mask("tf32")
    parts = (
        (memory_bound(graph), "bandwidth"),
        (compute & half, "half"),
        (compute & tf32, "tf32"),
        (compute & ~half & ~tf32, "fp32"),
    )
    ratio = np.full(len(graph), np.nan)
    for tasks, what in parts:
        if tasks.any():
            ratio[tasks] = _ratio(old, new, what)
    return ratio


def _by_work(graph: Graph, old: Rates, new: Rates, otherwise: Floats) -> Floats:
    """The same by the rooflines of both devices, where a kernel's work is known."""
    flops, size = work_of_tasks(graph)
    before, after = (np.maximum(*times_ns(graph, flops, size, rates)) for rates in (old, new))
    known = (before > 0) & (after > 0)
    return np.where(known, before / np.where(known, after, 1), otherwise)


def _ratio(old: Rates, new: Rates, what: str) -> float:
    if not old[what] or not new[what]:
        raise ChangeError(f"faster_gpu: {old['name']} or {new['name']} has no rate for {what}")
    return float(new[what] / old[what])


def _rates(name: str) -> Rates:
    found = rates_of(name)
    if found is None:
        known = ", ".join(gpu["name"] for gpu in known_gpus())
        raise ChangeError(f"faster_gpu: rates are known for {known}; found {name or 'no name'!r}")
    return found
