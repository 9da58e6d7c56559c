"""Kernels of a step on another GPU: products by their sizes, the rest by both rooflines."""

from __future__ import annotations

import numpy as np

from stepscope.base.arrays import Floats
from stepscope.graph import Graph
from stepscope.models.calibration.calibration import Operator
from stepscope.models.kernels.gpu import SINGLE, TF32, Gpu, find_gpu
from stepscope.models.kernels.operators import Product, products_ns, products_of
from stepscope.models.whatif.parts.gpu_precision import precisions_of_operators
from stepscope.models.whatif.parts.kernel_times import Rates, scaled_kernels_ns
from stepscope.models.whatif.parts.step_work import StepWork, step_work


def kernels_on_ns(graph: Graph, old: Rates, new: Rates) -> Floats:
    """Duration of each kernel on another device, ns, shape (tasks,); nan for other tasks.

    Between two NVIDIA GPUs a product of known sizes takes as much longer or shorter as products of
    its sizes are predicted to; every other kernel scales by peak rates.

    Raises:
        ChangeError: if a device lacks a rate.
    """
    time = scaled_kernels_ns(graph, old, new)
    before, after = (find_gpu({"name": rates["name"]}) for rates in (old, new))
    if before is None or after is None:
        return time
    work = graph.once(step_work)
    ratio = np.append(_ratios(graph, work, before, after), np.nan)[work.of_task]
    known = work.replaced & ~np.isnan(ratio) & ~np.isnan(time)
    return np.where(known, graph.tasks["duration_ns"] * ratio, time)


def _ratios(graph: Graph, work: StepWork, old: Gpu, new: Gpu) -> Floats:
    """The time of each operator's products on the new device over that on the old one; nan if unknown."""
    precisions = precisions_of_operators(graph, work)
    result = np.full(len(precisions), np.nan)
    ratios: dict[tuple[str, str], float] = {}  # sizes repeat from layer to layer and step to step
    for row in np.flatnonzero(work.product_ns > 0).tolist():
        products = work.products(row) or _by_sizes_alone(graph, work, row)
        if products and not work.cells_ns[row]:
            key = precisions[row], str(products)
            if key not in ratios:
                times = (products_ns(products, _offered(precisions[row], gpu), gpu) for gpu in (new, old))
                ratios[key] = next(times) / next(times)
            result[row] = ratios[key]
    return result


def _by_sizes_alone(graph: Graph, work: StepWork, row: int) -> list[Product]:
    """Matrix products of traces that have sizes without strides and values (PyTorch before 2.1)."""
    event = int(work.operators.rows[row])
    arguments = graph.trace.event_arguments(event)
    sizes, types = arguments.get("Input Dims"), arguments.get("Input type")
    if work.call(row) is not None or not sizes or not types or len(sizes) != len(types):
        return []
    name = str(graph.trace.events.text("name")[event]).removeprefix("aten::")
    nothing = ("",) * len(sizes)
    call = Operator(name, tuple(sizes), tuple(() for _ in sizes), tuple(types), nothing)
    return products_of(call) if "conv" not in name else []


def _offered(precision: str, gpu: Gpu) -> str:
    """PyTorch computes in FP32 what a device cannot compute in TF32."""
    return SINGLE if precision == TF32 and TF32 not in gpu.flops else precision
