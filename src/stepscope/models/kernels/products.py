"""A GPU, and the time of matrix products on it by shape and precision: tiles in waves, bounded by bytes.

A kernel cuts its result into tiles, which the multiprocessors compute in waves; several of them
share a tile's inner dimension where there are fewer tiles than multiprocessors. A product takes the
longer of that and of moving its matrices, and something to begin.

The constants below were fitted on 115,000 products in bfloat16 on A100, H100, H200 and B200
(ai-dynamo/aiconfigurator, Apache-2.0) and 128 in FP16 on a V100 (DeepBench, Apache-2.0), by
`benchmarks/kernels/products.py`. Fitted without a device they predict it within 5 to 10 % at the
median (docs/evidence/accuracy.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from stepscope.base.arrays import Floats
from stepscope.facts.roofline.rates import rates_of

SINGLE, TF32, HALF = "fp32", "tf32", "half"
BYTES = {SINGLE: 4, TF32: 4, HALF: 2}  # of an element in memory
_HOPPER = 9  # compute capability from which on products run as persistent kernels


@dataclass(frozen=True)
class Gpu:
    """A device with known rates."""

    name: str
    multiprocessors: int  # how many
    bandwidth: float  # of memory by the data sheet, bytes per ns
    flops: Mapping[str, float]  # peak operations per ns by precision; without those that the device lacks
    persistent: bool  # whether kernels of products copy ahead and share their last wave (Hopper on)

    def rate(self, precision: str) -> float:
        """Peak operations per ns; FP32's where the device lacks TF32, as PyTorch then computes."""
        return self.flops.get(precision, self.flops[SINGLE])


def find_gpu(device: Mapping[str, Any]) -> Gpu | None:
    """The GPU of a trace's device; None if its rates are unknown, or it is not from NVIDIA.

    Args:
        device: properties as the trace records them; `name`, and `numSms` if it is there.
    """
    name, count = str(device.get("name", "")), device.get("numSms")
    rates = rates_of(name.partition(" MIG ")[0] if count else name)
    if rates is None or rates.get("major") is None:
        return None
    count = int(count or rates["multiprocessors"])
    part = count / rates["multiprocessors"]  # less than 1 of a GPU that is divided (MIG)
    flops = {name: 1e3 * part * rates[name] for name in BYTES if rates[name]}
    return Gpu(rates["name"], count, part * rates["bandwidth"], flops, rates["major"] >= _HOPPER)


# Rows and columns of a tile, and its rate relative to that of the largest.
TILES = (
    *((rows, columns, 1.0) for rows, columns in ((256, 128), (128, 256), (128, 128), (64, 256), (256, 64))),
    *((rows, columns, 0.83) for rows, columns in ((128, 64), (64, 128))),
    (64, 64, 0.60),
    *((rows, columns, 0.195) for rows, columns in ((16, 64), (32, 64), (16, 128), (64, 32))),
)  # fitted
_SHARE_OF_PEAK = 0.834  # of a multiprocessor that computes `_REFERENCE`; fitted
_REFERENCE = 7500.0  # operations per ns of one multiprocessor: H100 in 16 bits
_SHARE_LOST = 0.122  # of the peak for each doubling of a multiprocessor's rate: harder to feed; fitted
_MOST_OF_PEAK = 0.877  # that any product reaches; fitted
_SHARE_OF_BANDWIDTH = 0.802  # of the data sheet's; fitted
_BEFORE_HOPPER = 0.852  # bandwidth reached, and begin, without asynchronous copies of tiles; fitted
_BEGIN_NS = 2175.0  # launch of the grid, first loads and last stores; fitted
_FIRST_LOADS = 198  # of the inner dimension that a tile's first loads take as long as; fitted
# Without tensor cores small tiles compute nearly as fast, and loads hide behind longer computing.
_PLAIN_LOADS, _PLAIN_TILE = 32, 0.83  # of FP32; fitted on 160 products of a V100 (DeepBench)
_SPLIT_NS = 3245.0  # to add up what several multiprocessors computed of a tile; fitted
_LEAST_PART = 256  # of the inner dimension that one multiprocessor computes of a shared tile
_MOST_COPIES = 4  # of a result that parts are written to before they are added up
ALIGNED = 16  # bytes that a row has to be a multiple of for one copy to feed tensor cores
# Otherwise elements are copied one by one, as many per second in any precision: operations per ns
# over the peak in 16 bits. GPT-2's vocabulary on an H200, one model.
_MISALIGNED = 0.09  # as above


def product_ns(
    rows: ArrayLike,
    columns: ArrayLike,
    inner: ArrayLike,
    precision: str,
    gpu: Gpu,
    *,
    batch: ArrayLike = 1,
    elements: ArrayLike | None = None,
    aligned: ArrayLike = True,
) -> Floats:
    """The time of products of (rows, inner) with (inner, columns) matrices, ns.

    Args:
        rows, columns, inner, batch: sizes, each a number or of shape (n,).
        precision: `fp32`, `tf32` or `half`.
        elements: that are read and written; by default those of the matrices.
        aligned: whether every row of the operands and the result begins at a multiple of 16 bytes.

    Returns:
        Shape (n,), or () for numbers.

    Example:
        >>> from stepscope.models.kernels import find_gpu
        >>> gpu = find_gpu({"name": "NVIDIA H200"})
        >>> round(float(product_ns(4096, 4096, 4096, "half", gpu)) / 1e3)  # 168 us measured
        177
    """
    m, n, k, count = np.broadcast_arrays(
        # An expert without tokens has products of no rows: they begin and end.
        *(np.maximum(np.asarray(size, np.float64), 1) for size in (rows, columns, inner, batch))
    )
    width = BYTES[precision]
    matrices = count * (m * k + k * n + m * n) if elements is None else np.asarray(elements, np.float64)
    moving = width * matrices / bandwidth_reached(gpu)
    computing = np.min([_tiled_ns(m, n, k, count, tile, precision, gpu) for tile in TILES], axis=0)
    if precision != SINGLE:
        slow = 2 * count * m * n * k / (gpu.rate(HALF) * _MISALIGNED)
        computing = np.where(np.asarray(aligned) | (np.minimum(m, n) == 1), computing, slow)
    return begin_ns(gpu) + (computing**4 + moving**4) ** 0.25  # the longer, smoothly


def share_of_peak(precision: str, gpu: Gpu) -> float:
    """The share of the peak rate that large products reach."""
    # TF32 uses the tensor cores of 16 bits with operands twice as wide: it is as hard to feed.
    own = gpu.rate(HALF if precision == TF32 else precision) / gpu.multiprocessors
    return min(_SHARE_OF_PEAK - _SHARE_LOST * float(np.log2(own / _REFERENCE)), _MOST_OF_PEAK)


def bandwidth_reached(gpu: Gpu) -> float:
    """Bytes per ns that kernels reach."""
    return gpu.bandwidth * _SHARE_OF_BANDWIDTH * (1.0 if gpu.persistent else _BEFORE_HOPPER)


def begin_ns(gpu: Gpu) -> float:
    """The time of a product that computes nothing."""
    return _BEGIN_NS / (1.0 if gpu.persistent else _BEFORE_HOPPER)


def _tiled_ns(
    m: Floats, n: Floats, k: Floats, batch: Floats, tile: tuple[int, int, float], precision: str, gpu: Gpu
) -> Floats:
    """With one size of tile: in waves, or shared where there are fewer tiles than multiprocessors."""
    rows, columns, relative = tile
    first = _FIRST_LOADS
    if precision == SINGLE:
        first, relative = _PLAIN_LOADS, max(relative, _PLAIN_TILE)
    rate = gpu.rate(precision) / gpu.multiprocessors * share_of_peak(precision, gpu) * relative
    tiles = np.ceil(m / rows) * np.ceil(n / columns) * batch
    waves = tiles / gpu.multiprocessors
    waves = np.maximum(waves, 1) if gpu.persistent else np.ceil(waves)
    whole = waves * 2 * rows * columns * (k + first) / rate
    parts = np.clip(np.floor(gpu.multiprocessors / tiles), 1, np.ceil(k / _LEAST_PART))
    written = 4 * batch * m * n * np.minimum(parts, _MOST_COPIES) / gpu.bandwidth
    adding = np.where(parts > 1, written + _SPLIT_NS, 0)
    shared = 2 * rows * columns * (k / parts + first) / rate + adding
    return np.minimum(whole, np.where(tiles < gpu.multiprocessors, shared, np.inf))
