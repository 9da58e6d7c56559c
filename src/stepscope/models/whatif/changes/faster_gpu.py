"""`faster_gpu`: the same step on another device, products by their sizes, the rest by both rooflines."""

import re
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from stepscope.base.arrays import Floats, Mask
from stepscope.errors import ChangeError, name_hint
from stepscope.facts.roofline.rates import known_gpus, rates_of
from stepscope.graph import Graph, scale
from stepscope.models.calibration.calibration import Operator, are_sizes
from stepscope.models.kernels.operators import CONVOLUTION_IN_TF32, Product, products_ns, products_of
from stepscope.models.kernels.products import SINGLE, TF32, Gpu, find_gpu, product_ns
from stepscope.models.whatif.change import Change
from stepscope.models.whatif.parts.gpu_precision import precisions_of_operators
from stepscope.models.whatif.parts.kernel_times import (
    SCALING_ERROR,
    Rates,
    compute_bound,
    device_of,
    peak_rate,
    precision_of_tasks,
    scaled_kernels_ns,
)
from stepscope.models.whatif.parts.step_work import StepWork, step_work

_PREFERRED = "H100"
_FASTER = 0.9  # of the time of kernels; chosen: less is far within the error
HOST_ERROR = 1.5  # as slow or fast as the CPU of another machine may be: DLRM on two with an H200, 1.48
_ALLOWED = ("high", "medium")  # what PyTorch calls matrix products that may compute in TF32
# Operators that `torch.backends.cudnn.allow_tf32` is about.
_CUDNN = re.compile("conv|cudnn", re.IGNORECASE)
_GAINS = {"typical": 0, "low": -1, "high": 1}  # exponents of both errors


def faster_gpu(graph: Graph, to: str = "", tf32: bool = False, estimate: str = "typical") -> Graph:
    """Kernels run on the device TO, by the sizes of products and the peak rates of both devices.

    Between two NVIDIA GPUs products of recorded sizes take as much longer or shorter as products of
    these sizes do. Of every other kernel 5 us stay, and the rest changes by the rooflines of both
    devices if an operator's shapes were recorded; else by the ratio of compute (in its precision)
    or memory bandwidth, depending on the kind of kernel. Peak rates and their sources:
    `roofline/data/gpus.json`.

    Where only the new device offers TF32, cuDNN computes FP32 convolutions in it, as is PyTorch's
    default, and matrix products if the capture says that the script allows it.

    Args:
        to: a device of `data/gpus.json`; by default H100, or the next one that is faster.
        tf32: whether FP32 matrix products run in TF32 there, whatever the capture says.
        estimate: `typical`; `low` or `high` if device work takes 1.6 times as long or as short, the
            largest error that was measured, and the CPU of the other machine 1.5 times; in `low`
            FP32 stays FP32, in `high` all products run in TF32.
    """
    if estimate not in _GAINS:
        raise ChangeError(f"faster_gpu: expected estimate=low, typical or high, found {estimate!r}")
    if not graph.on_device.any():
        raise ChangeError("faster_gpu: these steps have no device work")
    old = _rates(str(device_of(graph).get("name", "")))
    new = _rates(to) if to else _faster(graph, old)
    gains = _GAINS[estimate]
    everywhere = tf32 or gains > 0 or graph.trace.metadata.capture.get("matmul_precision") in _ALLOWED
    time = kernels_on_ns(graph, old, new, None if gains < 0 and not tf32 else everywhere)
    kernels = ~np.isnan(time)
    graph = scale(graph, kernels, time[kernels] / np.maximum(graph.tasks["duration_ns"][kernels], 1))
    if not gains:
        return graph
    graph = scale(graph, graph.on_device, SCALING_ERROR**-gains)
    return scale(graph, ~graph.on_device, HOST_ERROR**-gains, gaps=True)


def choose_faster(graph: Graph) -> dict[str, str]:
    """The device that the change takes by default, as its parameter `to`."""
    if not graph.on_device.any():
        return {}
    return {"to": str(_faster(graph, _rates(str(device_of(graph).get("name", ""))))["name"])}


def _faster(graph: Graph, old: Rates) -> Rates:
    """The first known device, H100 before others, on which these kernels take less time."""
    time = graph.tasks["duration_ns"]
    unknown = compute_bound(graph) & precision_of_tasks(graph).mask("")
    for new in sorted(known_gpus(), key=lambda gpu: gpu["name"] != _PREFERRED):
        with suppress(ChangeError):  # a device without one of the rates
            after = scaled_kernels_ns(graph, old, new)
            in_half = (peak_rate(old, "half") or np.nan) / (peak_rate(new, "half") or np.nan)
            after[unknown] = np.fmax(after[unknown], time[unknown] * in_half)  # they may be in either
            kernels = ~np.isnan(after)
            if after[kernels].sum() < _FASTER * time[kernels].sum():
                return new
    raise ChangeError(f"faster_gpu: no known device runs these kernels faster than {old['name']}")


def _rates(name: str) -> Rates:
    if not name:
        raise ChangeError("faster_gpu: the trace does not name its device; name it with the option device")
    found = rates_of(name)
    if found is None:
        hint = name_hint(name, [gpu["name"] for gpu in known_gpus()])
        raise ChangeError(f"faster_gpu: there are no rates for {name!r}; {hint}")
    return found


def kernels_on_ns(graph: Graph, old: Rates, new: Rates, tf32: bool | None = False) -> Floats:
    """Duration of each kernel on another device, ns, shape (tasks,); nan for other tasks.

    Args:
        tf32: whether FP32 products, or only convolutions, run in TF32; None if neither.

    Between two NVIDIA GPUs a product of known sizes takes as much longer or shorter as products of
    its sizes are predicted to, and one that changes its precision as a square one of its time
    would; every other kernel scales by peak rates.

    Raises:
        ChangeError: if a device lacks a rate.
    """
    time = scaled_kernels_ns(graph, old, new)
    before, after = (find_gpu({"name": rates["name"]}) for rates in (old, new))
    if before is None or after is None:
        return time
    work = graph.once(step_work)
    precisions = np.array(precisions_of_operators(graph, work), "<U8")
    if tf32 is not None and TF32 in after.flops and TF32 not in before.flops:
        names = graph.trace.events.text("name")
        moves = names.where(lambda name: bool(_CUDNN.search(name)))[work.operators.rows] | tf32
        tasks = np.append(moves, tf32)[work.of_task] & precision_of_tasks(graph).mask("fp32")
        tasks &= graph.tasks.text("kind").mask("gemm", "convolution")
        time[tasks] = np.fmin(time[tasks], _squares_ns(graph, tasks, before, after))
        precisions[moves & (precisions == SINGLE)] = TF32
    ratio = np.append(_ratios(work, precisions.tolist(), before, after, graph), np.nan)[work.of_task]
    known = work.replaced & ~np.isnan(ratio) & ~np.isnan(time)
    return np.where(known, graph.tasks["duration_ns"] * ratio, time)


def _squares_ns(graph: Graph, tasks: Mask, old: Gpu, new: Gpu) -> Floats:
    """FP32 kernels in TF32 on the new device: each as the square product that takes its time, ns.

    From their FP32 times alone it predicts the FP16 times of DeepBench's products on a V100 within
    12 % at the median; peak rates are 29 % off.
    """
    # Up to 32,768: from the shortest kernels to seconds.
    sides = 2.0 ** np.arange(3, 15.1, 0.125)
    before = np.maximum.accumulate(product_ns(sides, sides, sides, SINGLE, old))
    ratio = product_ns(sides, sides, sides, TF32, new) / before
    time, convolves = graph.tasks["duration_ns"][tasks], graph.tasks.text("kind").mask("convolution")[tasks]
    slower = np.where(convolves, CONVOLUTION_IN_TF32, 1.0)
    return np.asarray(time * np.interp(time, before, ratio) * slower, np.float64)


def _ratios(work: StepWork, precisions: Sequence[str], old: Gpu, new: Gpu, graph: Graph) -> Floats:
    """The time of each operator's products on the new device over that on the old one; nan if unknown."""
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
    if not are_sizes(sizes):
        return []
    name = str(graph.trace.events.text("name")[event]).removeprefix("aten::")
    call = Operator(name, tuple(sizes), tuple(() for _ in sizes), tuple(types), ("",) * len(sizes))
    return products_of(call) if "conv" not in name else []


def _offered(precision: str, gpu: Gpu) -> str:
    """PyTorch computes in FP32 what a device cannot compute in TF32."""
    return SINGLE if precision == TF32 and TF32 not in gpu.flops else precision


CHANGE = Change(
    faster_gpu,
    group="Compute",
    basis="the data sheets of both devices, and measurements of others on GPUs",
    assumptions=(
        "kernels gain what the peak rates of both devices suggest",
        "CPU times do not change: in another machine they may be 1.5 times as long or as short",
        "copies and collectives take as long as they did",
        "FP32 matrix products run in TF32 only if the capture says that the script allows it, or tf32=yes",
    ),
    low={"estimate": "low"},
    high={"estimate": "high"},
    choose=choose_faster,
    makeable=False,
)
