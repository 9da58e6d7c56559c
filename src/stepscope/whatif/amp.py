"""`amp`: what if forward and backward ran in 16 bits?"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.errors import ChangeError
from stepscope.graph import Graph, scale
from stepscope.whatif.amp_on_cpu import amp_on_cpu
from stepscope.whatif.calibrated import on_cpu
from stepscope.whatif.devices import device_of
from stepscope.whatif.kernels import compute_bound, in_half, in_tf32
from stepscope.whatif.roofline import bound_by_memory

Mask = NDArray[np.bool_]
_STAGES = ("forward", "loss", "backward")
_MEMORY = ("normalization", "elementwise", "reduction", "embedding", "other")
_AMD = re.compile(r"AMD|Instinct|Radeon")


def amp(graph: Graph, estimate: str = "typical") -> Graph:
    """Automatic mixed precision: kernels of forward and backward run in 16 bits.

    Args:
        graph: any graph.
        estimate: `low`, `typical` or `high`: which column of the speedups (`data/amp.json`); on a
            CPU, where speedups come from a calibration, there is but one.

    Raises:
        ChangeError: if the device or its speedups are not known, nothing runs in 32 bits, or a CPU
            is not calibrated.

    Source: DAYDREAM section 5.1, algorithm 3.
    """
    if estimate not in ("low", "typical", "high"):
        raise ChangeError(f"amp: expected estimate low, typical or high; found {estimate!r}")
    if on_cpu(graph):
        return amp_on_cpu(graph)
    factors = _factors(graph)
    compute, tensor, memory = _kernels(graph)
    for tasks, bound in ((compute, "compute"), (tensor, "tensor"), (memory, "memory")):
        graph = scale(graph, tasks, 1 / factors[bound][estimate])
    return graph


def _kernels(graph: Graph) -> tuple[Mask, Mask, Mask]:
    """Kernels bound by computing in FP32, those in TF32, and those bound by memory."""
    eligible = graph.tasks.text("stage").mask(*_STAGES) & ~in_half(graph)
    products = eligible & compute_bound(graph)
    if not products.any():
        raise ChangeError("amp: no matrix product or convolution runs in 32 bits")
    moves, tf32 = bound_by_memory(graph), in_tf32(graph)
    others = eligible & graph.tasks.text("kind").mask(*_MEMORY)
    return products & ~moves & ~tf32, products & ~moves & tf32, (products | others) & moves


def _factors(graph: Graph) -> dict[str, Any]:
    device = device_of(graph)
    name, major = str(device.get("name", "")), device.get("computeMajor")
    if not graph.on_device.any() or (major is None and not name):
        raise ChangeError("amp: speedups depend on the device, and the trace names none")
    found = [one for one in _table()["generations"] if one["major"] == major]
    if _AMD.search(name) or not found:
        raise ChangeError(f"amp: no speedups are known for {name or major}")
    factors: dict[str, Any] = found[0]
    return factors


@cache
def _table() -> dict[str, Any]:
    text = files("stepscope.whatif").joinpath("data/amp.json").read_text("utf-8")
    table: dict[str, Any] = json.loads(text)
    return table
