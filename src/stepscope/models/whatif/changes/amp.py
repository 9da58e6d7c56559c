"""`amp`: automatic mixed precision."""

import re
from typing import Any

from stepscope.base.arrays import Mask
from stepscope.errors import ChangeError
from stepscope.facts.roofline.rates import is_single, rates_of
from stepscope.graph import Graph, scale
from stepscope.models.whatif.change import Application, Change
from stepscope.models.whatif.cpu.autocast import amp_on_cpu, autocast_assumptions
from stepscope.models.whatif.cpu.calibrated import CpuPrediction, on_cpu
from stepscope.models.whatif.parts.autocast_flow import data_table
from stepscope.models.whatif.parts.gpu_precision import autocast_on_gpu, calibrated_time, precise_gpu
from stepscope.models.whatif.parts.kernel_times import (
    bound_by_memory,
    compute_bound,
    device_of,
    in_half,
    in_tf32,
)
from stepscope.models.whatif.parts.memory_flow import autocasted
from stepscope.trace.schema import FORWARD_STAGES

_STAGES = (*FORWARD_STAGES, "backward")
_MEMORY = ("normalization", "elementwise", "reduction", "embedding", "other")
_AMD = re.compile(r"AMD|Instinct|Radeon")
_WAVE = 64  # threads of a warp on AMD's GPUs for computing; NVIDIA's have 32


def amp(graph: Graph, dtype: str = "bfloat16", estimate: str = "typical") -> Graph:
    """Automatic mixed precision: forward and backward run in 16 bits.

    On a GPU whose products are known, each operator does what autocast makes of it: products,
    convolutions, attention and recurrent layers take what their sizes take in 16 bits, other
    kernels move fewer bytes or stay in FP32, and casts cost the device and the CPU. Without shapes,
    kernels that still run in 32 bits get the speedups in `whatif/data/amp.json` for the device's
    generation.

    Args:
        dtype: `bfloat16` or `float16`.
        estimate: `low`, `typical` or `high`: how much kernels gain; on a CPU, operators that
            a calibration could not measure.

    Source: DAYDREAM section 5.1, algorithm 3, for the speedups by generation.
    """
    if estimate not in ("low", "typical", "high"):
        raise ChangeError(f"amp: expected estimate=low, typical or high; found {estimate!r}")
    if dtype not in ("bfloat16", "float16"):
        raise ChangeError(f"amp: expected dtype=bfloat16 or float16; found {dtype!r}")
    if on_cpu(graph):
        if dtype != "bfloat16":
            raise ChangeError("amp: on a CPU the calibration is of bfloat16, so dtype=float16 is not known")
        return amp_on_cpu(graph, estimate)
    gpu = precise_gpu(graph)
    if gpu is not None:
        return autocast_on_gpu(graph, gpu, estimate, bfloat=dtype == "bfloat16")
    factors = _factors(graph)
    compute, tensor, memory = graph.once(_kernels)
    for tasks, bound in ((compute, "compute"), (tensor, "tensor"), (memory, "memory")):
        graph = scale(graph, tasks, 1 / factors[bound][estimate])
    return graph


def _kernels(graph: Graph) -> tuple[Mask, Mask, Mask]:
    """Compute-bound kernels in FP32, compute-bound kernels in TF32, memory-bound kernels."""
    eligible = graph.tasks.text("stage").mask(*_STAGES) & ~in_half(graph)
    products = eligible & compute_bound(graph)
    if not products.any():
        raise ChangeError("amp: no matrix product or convolution runs in 32 bits")
    if not (products := products & graph.tasks.text("name").where(is_single)).any():
        raise ChangeError("amp: nothing shows that products run in 32 bits; record their shapes")
    moves, tf32 = bound_by_memory(graph), in_tf32(graph)
    others = eligible & graph.tasks.text("kind").mask(*_MEMORY)
    return products & ~moves & ~tf32, products & ~moves & tf32, (products | others) & moves


def _factors(graph: Graph) -> dict[str, Any]:
    device = device_of(graph)
    name = str(device.get("name", ""))
    major = device.get("computeMajor") or (rates_of(name) or {}).get("major")  # XLA's traces have the name
    if not graph.on_device.any() or (major is None and not name):
        raise ChangeError("amp: the trace does not name its device; name it by the option device")
    rows = (row for row in data_table("amp.json")["generations"] if row["major"] == major)
    factors: dict[str, Any] | None = next(rows, None)
    is_amd = _AMD.search(name) or device.get("warpSize") == _WAVE
    if is_amd or factors is None:
        raise ChangeError(f"amp: no speedups are known for {name or ('AMD' if is_amd else major)}")
    return factors


CHANGE = Change(
    amp,
    group="Compute",
    basis="sizes of products, and measurements of others on GPUs; without shapes published speedups",
    assumptions=(
        "products run as fast as products of their sizes on this kind of GPU",
        "values in 16 bits are tracked by their sizes; the optimizer stays in 32 bits",
    ),
    evidence=calibrated_time,
    low={"estimate": "low"},
    high={"estimate": "high"},
    error=0.13,
    error_source="DAYDREAM 6.2",
    on_cpu=CpuPrediction("operators timed on this machine", autocast_assumptions),
    application=Application(
        "`torch.autocast` to bfloat16 around each outermost module call: the model's, and losses "
        "that are modules"
    ),
    memory=autocasted,
    memory_error=0.02,
)
