"""`pad_to_aligned`: matrix products of sizes whose rows begin at multiples of 16 bytes."""

import numpy as np

from stepscope.base.arrays import Mask
from stepscope.errors import ChangeError
from stepscope.graph import Graph
from stepscope.models.kernels.gpu import HALF, TF32, Gpu
from stepscope.models.kernels.operators import padded, products_ns
from stepscope.models.whatif.change import OURS, Change
from stepscope.models.whatif.parts.autocast_flow import effects_of, policy_of
from stepscope.models.whatif.parts.gpu_precision import (
    ALIGNED_ROWS,
    Kernels,
    StepWork,
    of_products,
    precise_gpu,
    step_work,
)
from stepscope.models.whatif.parts.kernel_times import in_half, in_tf32


def pad_to_aligned(graph: Graph) -> Graph:
    """Sizes of matrix products are padded, so that their rows begin at multiples of 16 bytes.

    Tensor cores are fed by copies of 16 bytes: 8 numbers of 16 bits. Products whose rows begin
    elsewhere, such as those of a vocabulary of 50,257, run at a fraction of the rate. Combine it
    with `amp` or `tf32` where the steps were recorded in FP32, which loses nothing.
    """
    gpu = precise_gpu(graph)
    if gpu is None:
        raise ChangeError(
            "pad_to_aligned: needs shapes and a known NVIDIA GPU; record with `stepscope run`, or "
            "name the device with --device"
        )
    work = graph.once(step_work)
    if not misaligned(work):
        raise ChangeError("pad_to_aligned: every matrix product has rows of multiples of 16 bytes")
    half, tf32 = _in_precision(graph, work)
    kernels = [_kernels(work, gpu, row, HALF if half[row] else TF32 if tf32[row] else "") for row in _rows(work)]
    nothing = np.zeros(len(kernels))
    return work.retimed(graph, kernels, nothing, nothing).having(ALIGNED_ROWS)


def misaligned(work: StepWork) -> list[int]:
    """The operators whose products gain by aligned rows in 16 bits."""
    return [row for row in _rows(work) if any(padded(one) != one for one in work.products(row))]


def _rows(work: StepWork) -> range:
    return range(len(work.operators.rows))


def _kernels(work: StepWork, gpu: Gpu, row: int, precision: str) -> Kernels:
    product, other = float(work.product_ns[row]), float(work.other_ns[row])
    products = work.products(row) if precision and product else []
    if not products:
        return Kernels(product, other)
    before, after = (products_ns(sizes, precision, gpu) for sizes in (products, list(map(padded, products))))
    return Kernels(product * min(after / before, 1.0), other)


def _in_precision(graph: Graph, work: StepWork) -> tuple[Mask, Mask]:
    """Operators in 16 bits and in TF32: as earlier changes have it, else by their kernels."""
    half, tf32 = of_products(work, in_half(graph)), of_products(work, in_tf32(graph))
    if HALF in graph.settings:
        half |= np.array([one.half for one in effects_of(graph, work.operators, policy_of("cuda"))])
    if TF32 in graph.settings:
        tf32 |= ~half
    return half, tf32


CHANGE = Change(
    pad_to_aligned,
    group="Compute",
    basis="sizes of products, and measurements of others on GPUs",
    assumptions=(
        "padded products run as fast as aligned products of their sizes on this kind of GPU",
        "other work on padded values takes as long as it did",
    ),
    error=0.2,
    error_source=OURS,
    memory=lambda memory: memory,
)
