"""`odd_shapes`: matrix products whose sizes the tensor cores do not fit."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stepscope.analyze.finding import Finding
from stepscope.analyze.subject import Subject

_PRODUCT = r"^aten::(mm|addmm|bmm|baddbmm)$"
_HALF = ("c10::Half", "c10::BFloat16", "at::Half", "at::BFloat16")
LEAST_SIZE = 16


def odd_shapes(subject: Subject) -> Iterator[Finding]:
    """Matrix products in 16 bits with a size that is no multiple of 8.

    Silent where shapes or types were not recorded, in 32 bits, without a device, and for sizes
    below 16, which cannot be padded to advantage.

    Source: NVIDIA, Matrix Multiplication Background User's Guide, section 4.1 "Tensor Core
    Requirements": sizes in multiples of 16 bytes.
    """
    rows = subject.find(_PRODUCT, category="cpu_op") if subject.has_device else np.zeros(0, int)
    odd = {}
    for row, arguments in zip(rows.tolist(), subject.arguments(rows), strict=True):
        types = arguments.get("Input type") or []
        if any(kind in _HALF for kind in types) and (sizes := _odd(arguments.get("Input Dims"))):
            odd[row] = sizes
    chosen = np.array(list(odd), np.int64)
    if not len(chosen):
        return
    work = subject.find(inside=chosen, on_device=True, category="kernel")
    sizes = sorted({size for found in odd.values() for size in found})
    if not len(work):
        return
    listed = ", ".join(map(str, sizes[:4])) + (", …" if len(sizes) > 4 else "")
    yield subject.finding(
        f"{subject.calls(chosen):.4g} matrix products a step in 16 bits have sizes that are no "
        f"multiple of 8 ({listed}), {subject.ms(work):.3g} ms.",
        "Pad them to a multiple of 8, better of 64: the vocabulary, the hidden size, the batch.",
        work,
        subject.bound(subject.ms(work) / 2, "at most half of their time, an assumption"),
    )


def _odd(shapes: object) -> list[int]:
    matrices = [one for one in shapes if isinstance(one, list) and len(one) in (2, 3)] \
        if isinstance(shapes, list) else []  # fmt: skip
    sizes = {size for matrix in matrices for size in matrix[-2:]}
    return sorted(size for size in sizes if size % 8 and size >= LEAST_SIZE)
