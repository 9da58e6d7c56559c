"""Attention written as product, softmax and product, and the one kernel that does its work.

The first product makes scores, which are scaled, masked and normalized; the second multiplies them
with values. Backward does the same for gradients, in five products where forward has two. The
fused kernel never writes the scores. Source: Dao, "FlashAttention-2", 2023, sections 3.1 and 4.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.models.kernels.operators import Product, attention_ns
from stepscope.models.kernels.products import BYTES, Gpu
from stepscope.models.whatif.parts.step_work import KernelTimes, StepWork

SDPA = "sdpa"  # setting of a graph: its attention is fused
_NEAR = 8  # operators between a product and the softmax: scale, mask, cast, dropout
LARGEST_HEAD = 256  # numbers of a head that fused kernels take: PyTorch, `scaled_dot_product_attention`
VIEWS = (
    *("view", "reshape", "transpose", "permute", "t", "expand", "unsqueeze", "squeeze", "slice"),
    *("select", "narrow", "detach", "flatten", "unflatten", "chunk", "split", "unbind", "contiguous"),
)
_SOFTMAX = ("softmax", "_softmax", "_safe_softmax")
_BATCHED = ("bmm", "baddbmm", "matmul")
_BACKWARD_PRODUCTS = 2.5  # times the operations of forward
_BACKWARD_BYTES = 2.0  # times those of forward


@dataclass(frozen=True)
class Attention:
    """One call of attention."""

    forward: tuple[int, ...]  # its operators, as rows of `StepWork`
    backward: tuple[int, ...]  # the same of its backward; empty in inference
    scores: Product  # its products
    values: Product  # its products

    def kernel_ns(self, precision: str, gpu: Gpu, backward: bool) -> float:
        """The time of the fused kernel, ns."""
        batch, rows, length = self.scores.batch, self.scores.rows, self.scores.columns
        head, out = self.scores.inner, self.values.columns
        flops = 2.0 * batch * rows * length * (head + out)
        moved = float(BYTES[precision] * batch * (rows + length) * (head + out))
        if backward:
            return attention_ns(_BACKWARD_PRODUCTS * flops, _BACKWARD_BYTES * moved, precision, gpu, 2)
        return attention_ns(flops, moved, precision, gpu)


def find_attention(work: StepWork) -> Iterator[Attention]:
    """Each call of attention that a fused kernel could compute."""
    later = np.argsort(work.ahead, kind="stable")
    ahead = work.ahead[later]
    views = np.array([not name or name in VIEWS for name in work.names], np.bool_)
    works = np.flatnonzero(~views & ~work.backward)
    for place in range(len(works)):
        ends = _ends(work, works, place)
        if ends is None:
            continue
        first, last = int(works[ends[0]]), int(works[ends[1]])
        scores, values = work.products(first)[0], work.products(last)[0]
        begin, end = np.searchsorted(ahead, [first, last + 1])
        backward = sorted(row for row in later[begin:end].tolist() if work.backward[row])
        forward = tuple(row for row in range(first, last + 1) if not work.backward[row])
        yield Attention(forward, tuple(backward), scores, values)


def _ends(work: StepWork, works: np.ndarray, place: int) -> tuple[int, int] | None:
    """The places of both products around a softmax, if their sizes are those of attention."""
    if work.names[works[place]] not in _SOFTMAX:
        return None
    first = _next_product(work, works, range(place - 1, max(place - 1 - _NEAR, -1), -1))
    last = _next_product(work, works, range(place + 1, min(place + 1 + _NEAR, len(works))))
    if first is None or last is None:
        return None
    before, after = (work.products(int(works[end])) for end in (first, last))
    if not before or not after or not _fit(before[0], after[0]):
        return None
    return first, last


def _next_product(work: StepWork, works: np.ndarray, places: range) -> int | None:
    """The nearest operator that multiplies, if it multiplies batches."""
    for place in places:
        row = int(works[place])
        if work.product_ns[row] or work.products(row):
            return place if work.names[row] in _BATCHED else None
    return None


def _fit(scores: Product, values: Product) -> bool:
    same = (scores.batch, scores.rows, scores.columns) == (values.batch, values.rows, values.inner)
    return same and max(scores.inner, values.columns) <= LARGEST_HEAD


def fused_kernels(work: StepWork, gpu: Gpu, precision: Sequence[str]) -> dict[int, KernelTimes]:
    """The kernels of the operators of attention where one kernel does its work.

    The first product of forward, and of backward, stands for it; the others do nothing.

    Args:
        precision: of each operator.
    """
    result: dict[int, KernelTimes] = {}
    for attention in find_attention(work):
        for rows, backward in ((attention.forward, False), (attention.backward, True)):
            result |= dict.fromkeys(rows, KernelTimes(0.0, 0.0))
            multiplies = next((row for row in rows if work.product_ns[row]), None)
            if multiplies is not None:
                time = attention.kernel_ns(precision[multiplies], gpu, backward)
                result[multiplies] = KernelTimes(time, 0.0, 1 + backward)
    return result
