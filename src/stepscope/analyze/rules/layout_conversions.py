"""`layout_conversions`: tensors change between NCHW and NHWC around convolutions (6.2)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stepscope.analyze.finding import Finding
from stepscope.analyze.subject import Rows, Subject, glob

_KERNELS = (
    r"nchwToNhwc|nhwcToNchw|nchw2nhwc|nhwc2nchw|NCHW2NHWC|NHWC2NCHW|batched_transpose_\d"
    r"|transpose_\w*(NHWC|NCHW|nhwc|nchw)|convert_tensor_layout|tensorTransformGeneric"
)
_CONVOLUTION = r"^aten::_?(\w+_)?conv(olution)?\w*$"
LEAST_A_STEP = 4
ADVICE = (
    "Keep one layout throughout: model.to(memory_format=torch.channels_last), the input too, and "
    "layers (norms, permutes) that keep it."
)
JAX = (
    "Keep one layout throughout: NHWC for images and in dimension_numbers of convolutions, without "
    "jnp.transpose between layers."
)


def layout_conversions(subject: Subject) -> Iterator[Finding]:
    """Layout conversions around convolutions: NCHW to NHWC and back.

    Silent where no kernel is known to convert layouts; without a device, where fewer than 4 copies
    a step reorder a tensor of four dimensions of a size that a convolution takes, or shapes and
    strides were not recorded.

    Source: DEEPCONTEXT section 6.2: U-Net, 15 % of GPU time; 54 s to 42 s without.
    """
    rows = _kernels(subject) if subject.has_device else _copies(subject)
    if subject.calls(rows) < LEAST_A_STEP:
        return
    names = sorted({subject.name(row) for row in rows.tolist()})
    yield subject.finding(
        f"{subject.calls(rows):.4g} times a step a tensor changes its layout around a convolution, "
        f"{subject.ms(rows):.3g} ms.",
        subject.in_words(ADVICE, jax=JAX),
        rows,
        subject.gain(rows, *(f"scale:select=name={glob(name)},factor=0" for name in names))
        if subject.has_device
        else subject.bound(subject.ms(rows), "at most the time of these copies"),
    )


def _kernels(subject: Subject) -> Rows:
    return subject.find(_KERNELS, on_device=True)


def _copies(subject: Subject) -> Rows:
    """Copies of what convolutions take, from one layout to another.

    Attention reorders tensors of four dimensions too, and keeps to itself.
    """
    sizes = _sizes(subject)
    if not sizes:
        return np.zeros(0, np.int64)
    copies = subject.find(r"^aten::copy_$", category="cpu_op", stage=("forward", "backward"))
    chosen = [_reorders(one.get("Input Dims"), one.get("Input Strides"), sizes)
              for one in subject.arguments(copies)]  # fmt: skip
    return copies[np.array(chosen, np.bool_)]


def _sizes(subject: Subject) -> set[tuple[int, ...]]:
    """Sizes of all tensors of four dimensions that convolutions take, gradients included."""
    convolutions = subject.find(_CONVOLUTION, category="cpu_op")
    taken = [one.get("Input Dims") for one in subject.arguments(convolutions)]
    shapes = (shape for shapes in taken if isinstance(shapes, list) for shape in shapes)
    return {tuple(shape) for shape in shapes if isinstance(shape, list) and len(shape) == 4}


def _reorders(shapes: object, strides: object, sizes: set[tuple[int, ...]]) -> bool:
    """Whether a copy is of one of these sizes, its destination and its source both dense and
    ordered differently."""
    if not isinstance(shapes, list) or not isinstance(strides, list) or len(strides) < 2:
        return False
    if (
        tuple(shapes[0]) not in sizes
        or shapes[0] != shapes[1]
        or 0 in strides[0]
        or 0 in strides[1]
    ):
        return False
    orders = [np.argsort(one, kind="stable").tolist() for one in strides[:2]]
    return bool(orders[0] != orders[1] and min(shapes[0][1:]) > 1)
