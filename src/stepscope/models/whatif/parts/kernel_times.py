"""The roofline of a graph's kernels: what limits them, and their least time on a device.

A kernel takes at least its operations over the device's peak rate, and its bytes over the memory
bandwidth; the longer of the two limits it (Williams et al., "Roofline", CACM 52(4), 2009).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from stepscope.base.arrays import Codes8, Floats, Mask
from stepscope.errors import ChangeError
from stepscope.facts.roofline.operator_work import PRODUCTS, work_of_pieces
from stepscope.facts.roofline.rates import PRECISIONS, is_half, is_tf32, precisions, rates_of
from stepscope.graph import Graph, select
from stepscope.trace.row_order import inverse
from stepscope.trace.schema import PRODUCT_KINDS
from stepscope.trace.table import Text


def device_of(graph: Graph) -> Mapping[str, Any]:
    """The properties of the first device with work, as far as the trace records them."""
    numbers = graph.threads["device"][graph.threads["device"] >= 0]
    return graph.trace.metadata.device(int(numbers.min())) if len(numbers) else {}


def compute_bound(graph: Graph) -> Mask:
    """Kernels of matrix products, convolutions and attention, bool, shape (tasks,)."""
    return graph.tasks.text("kind").mask(*PRODUCT_KINDS) & select(graph, category="kernel", on_device=True)


def in_half(graph: Graph) -> Mask:
    """Tasks whose name indicates 16 bits."""
    return graph.tasks.text("name").where(is_half)


def in_tf32(graph: Graph) -> Mask:
    """Tasks whose name indicates TF32."""
    return graph.tasks.text("name").where(is_tf32)


def work_of_tasks(graph: Graph) -> tuple[Floats, Floats, Codes8]:
    """Operations, bytes and the operands' width of every task, shape (tasks,); nan and 0 if unknown, as
    for the CPU's tasks where a device works."""
    event, works = graph.tasks["event"], graph.on_device
    rows = np.flatnonzero((works if works.any() else np.ones(len(graph), np.bool_)) & (event >= 0))
    flops, size, width, *_ = work_of_pieces(graph.trace, event[rows], graph.tasks["duration_ns"][rows])
    place = inverse(rows, len(graph))
    flops, size = (np.append(column, np.nan)[place] for column in (flops, size))
    return flops, size, np.append(width, np.int8(0))[place]


def bound_by_memory(graph: Graph) -> Mask:
    """Memory-bound kernels, bool, shape (tasks,).

    By the roofline of the device if work and device are known, else by kind: all except matrix
    products, convolutions and attention.
    """
    kernels = graph.on_device & graph.tasks.text("category").mask("kernel")
    rates = rates_of_graph(graph)
    by_kind = ~compute_bound(graph)
    if rates is None:
        return kernels & by_kind
    computing, moving = times_ns(graph, rates)
    return kernels & np.where(~np.isnan(computing + moving), moving > computing, by_kind)


def precision_of_tasks(graph: Graph) -> Text:
    """`half`, `tf32`, `fp32`, or nothing if unknown, for each task."""
    return precisions(graph.tasks.text("name"), graph.once(work_of_tasks)[2])


def times_ns(graph: Graph, rates: Mapping[str, Any]) -> tuple[Floats, Floats]:
    """The least times in which a device computes each task's operations and moves its bytes, ns."""
    flops, size, _ = graph.once(work_of_tasks)
    peak = np.full(len(graph), rates["fp32"] or np.nan, np.float64)
    multiplies, precision = np.isin(graph.tasks["kind"], PRODUCTS), graph.once(precision_of_tasks)
    for name in PRECISIONS:
        peak[multiplies & precision.mask(name)] = peak_rate(rates, name) or np.nan
    peak[multiplies & precision.mask("")] = np.nan
    return flops / (peak * 1e3), size / rates["bandwidth"]


def peak_rate(rates: Mapping[str, Any], precision: str) -> float | None:
    """TFLOPS of a device; PyTorch computes in FP32 what a device cannot compute in TF32."""
    found = rates[precision] or (rates["fp32"] if precision == "tf32" else None)
    return None if found is None else float(found)


def memory_rate(graph: Graph) -> float | None:
    """Bytes per ns that the graph's elementwise work moves; None if unknown.

    The median of the longer half of the tasks, weighted by time: short ones are mostly launch. Of
    tasks with the same name and about the same size the fastest counts: noise only adds time.
    """
    _, size, _ = graph.once(work_of_tasks)
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


def bytes_per_ns(graph: Graph, change: str) -> float:
    """How fast this step's elementwise work moves bytes, else the bandwidth by the data sheet."""
    rates = rates_of_graph(graph)
    rate = memory_rate(graph) or (rates["bandwidth"] if rates else None)
    if not rate:
        raise ChangeError(
            f"{change}: the memory bandwidth is unknown; record shapes, or name the device (option device)"
        )
    return float(rate)


def rates_of_graph(graph: Graph) -> dict[str, Any] | None:
    """Peak rates of the device that the graph was measured on, None if they are unknown."""
    return rates_of(str(device_of(graph).get("name", "")))


Rates = Mapping[str, Any]
FIXED_NS = 5000  # of a kernel, on any device: docs/evidence/accuracy/other_devices.md
# Kernels on AMD's GPUs reach a smaller share of the data sheet than on NVIDIA's: two models on an H100
# and an MI300X take 1.18 and 1.47 times as long as peak rates say; each by the other's, 1.24 off.
_LONGER_ON_AMD = 1.32  # times; between the two: docs/evidence/accuracy/other_devices.md
SCALING_ERROR = 1.6  # kernels took at most so many times as long or as short as predicted


def scaled_kernels_ns(graph: Graph, old: Rates, new: Rates) -> Floats:
    """Duration of each kernel on another device, ns; nan for other tasks."""
    time = graph.tasks["duration_ns"].astype(np.float64)
    fixed = np.minimum(time, FIXED_NS)
    scaled = fixed + (time - fixed) / _ratios(graph, old, new)
    return np.asarray(scaled * _longer(new) / _longer(old), np.float64)


def _longer(rates: Rates) -> float:
    return _LONGER_ON_AMD if str(rates["name"]).startswith(("MI", "AMD")) else 1.0


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
    ratio[select(graph, category="kernel", on_device=True) & ~compute] = new["bandwidth"] / old["bandwidth"]
    parts = ((compute & half, "half"), (compute & tf32, "tf32"), (compute & ~half & ~tf32, "fp32"))
    for tasks, rate in parts:
        if tasks.any():
            before, after = peak_rate(old, rate), peak_rate(new, rate)
            if not before or not after:
                raise ChangeError(f"faster_gpu: {old['name']} or {new['name']} has no {rate} rate")
            ratio[tasks] = after / before
    return ratio


def _by_work(graph: Graph, old: Rates, new: Rates, otherwise: Floats) -> Floats:
    """Speedup by the rooflines of both devices where a kernel's work is known, else `otherwise`."""
    before, after = (np.maximum(*times_ns(graph, rates)) for rates in (old, new))
    known = (before > 0) & (after > 0)
    return np.where(known, before / np.where(known, after, 1), otherwise)
