"""`layout_conversions`: conversions between NCHW and NHWC around convolutions (6.2)."""

from collections.abc import Iterator

import numpy as np

from stepscope.analyze.finding import Finding
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.arrays import Rows
from stepscope.base.numbers import rounded
from stepscope.models.whatif.changes.channels_last import LAYOUT_KERNELS
from stepscope.trace.schema import MODEL_STAGES

_CONVOLUTION = r"^aten::_?(\w+_)?conv(olution)?\w*$"
_STAGES = (*MODEL_STAGES, "backward")
LEAST_A_STEP = 4  # conversions
ADVICE = (
    "Keep one layout throughout: model.to(memory_format=torch.channels_last), the same for the "
    "input, and layers that preserve it."
)
JAX = (
    "Keep one layout throughout: NHWC for images and in dimension_numbers of convolutions, without "
    "jnp.transpose between layers."
)


def layout_conversions(context: RuleContext) -> Iterator[Finding]:
    """Layout conversions around convolutions: NCHW to NHWC and back.

    Silent below 4 conversions per step. On a CPU also if shapes and strides were not recorded; a
    conversion there is a copy that reorders a four-dimensional input or output of a convolution.

    Source: DEEPCONTEXT section 6.2: U-Net, 15 % of GPU time; 54 s to 42 s without.
    """
    kernels = context.search.find(LAYOUT_KERNELS.pattern, on_device=True)
    rows = kernels if context.measures.has_device else _copies(context)
    if context.measures.calls(rows) < LEAST_A_STEP:
        return
    yield context.finding(
        f"Each step converts layouts around convolutions {context.times(rows)}, "
        f"{rounded(context.measures.ms(rows))} ms.",
        context.by_framework(ADVICE, jax=JAX),
        rows,
        context.gains.without_names(rows)
        if context.measures.has_device
        else context.gains.bound(context.measures.ms(rows), "at most the time of these copies"),
    )


def _copies(context: RuleContext) -> Rows:
    """Copies of inputs and outputs of convolutions, from one layout to another.

    Attention reorders four-dimensional tensors too; these do not count.
    """
    taken = context.search.each_shapes(context.search.find(_CONVOLUTION, category="cpu_op"), list)
    sizes = {tuple(shape) for shapes in taken for shape in shapes if len(shape) == 4}
    if not sizes:
        return np.zeros(0, np.int64)
    copies = context.search.find(r"^aten::copy_$", category="cpu_op", stage=_STAGES)
    chosen = [
        _reorders(one.get("Input Dims"), one.get("Input Strides"), sizes)
        for one in context.trace.arguments_of(copies)
    ]
    return copies[np.array(chosen, np.bool_)]


def _reorders(shapes: object, strides: object, sizes: set[tuple[int, ...]]) -> bool:
    """Whether a copy has one of these sizes, and dense source and destination in another order."""
    if not isinstance(shapes, list) or not isinstance(strides, list) or len(strides) < 2:
        return False
    if tuple(shapes[0]) not in sizes or shapes[0] != shapes[1] or 0 in strides[0] or 0 in strides[1]:
        return False
    orders = [np.argsort(one, kind="stable").tolist() for one in strides[:2]]
    return bool(orders[0] != orders[1] and min(shapes[0][1:]) > 1)
