"""How many operations an operator computes and how many bytes it moves, by what it was called with.

Formulas are for the least that has to be done: each input read once, each output written once; two
operations a multiply and add.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from stepscope.trace.schema import KERNEL_KINDS
from stepscope.trace.trace import Trace
from stepscope.whatif.shapes import Call, Tensor, call_of

Floats = NDArray[np.float64]


class Work(NamedTuple):
    """Floating-point operations, and bytes read and written."""

    flops: float
    bytes: float


Formula = Callable[[Call], "Work | None"]


def _product(left: int, right: int, transposed: bool = False) -> Formula:
    """A matrix product of the arguments at two places, batched or not."""

    def formula(call: Call) -> Work | None:
        a, b = call.tensor(left), call.tensor(right)
        if not a or not b or len(a.shape) < 2 or len(b.shape) < 2:
            return None
        columns = b.shape[-2 if transposed else -1]
        out = a.elements // max(a.shape[-1], 1) * columns
        return Work(2 * out * a.shape[-1], a.bytes + b.bytes + out * a.width)

    return formula


def _convolution(call: Call) -> Work | None:
    """Source: PyTorch, `torch.nn.Conv2d`, "Shape"."""
    x, weight = call.tensor(0), call.tensor(1)
    if not x or not weight or len(x.shape) != len(weight.shape) or len(x.shape) < 3:
        return None
    places = _places(x, weight, call)
    if places is None:
        return None
    out = x.shape[0] * weight.shape[0] * places
    return Work(2 * out * prod(weight.shape[1:]), x.bytes + weight.bytes + out * x.width)


def _places(x: Tensor, weight: Tensor, call: Call) -> int | None:
    """How many places of the output a filter has; not told without stride, padding, dilation."""
    lists = [call.numbers(place) for place in (3, 4, 5)]
    known = [one for one in lists if one is not None]
    if len(known) < len(lists) or call.values[6:7] == ("True",):
        return None
    kernel, size = weight.shape[2:], x.shape[2:]
    every = [one * len(kernel) if len(one) == 1 else one for one in known]
    places = (
        (n + 2 * pad - space * (k - 1) - 1) // stride + 1
        for n, k, stride, pad, space in zip(size, kernel, *every, strict=False)
    )
    return int(prod(places))


def _convolution_backward(call: Call) -> Work | None:
    """Gradients of input and weight; each costs what forward did."""
    gradient, x, weight = (call.tensor(place) for place in range(3))
    if not gradient or not x or not weight:
        return None
    once = 2 * gradient.elements * prod(weight.shape[1:])
    mask = call.values[-1].lower() if call.values else ""
    wanted = sum("true" in one for one in mask.strip("[]").split(",")[:2]) or 2
    return Work(wanted * once, gradient.bytes + wanted * (x.bytes + weight.bytes))


def _attention(call: Call) -> Work | None:
    """Two products of query and key, and of weights and value; half of them where causal.

    Source: Dao, "FlashAttention-2", 2023, section 4.1.
    """
    query, key, value = (call.tensor(place) for place in range(3))
    if not query or not key or not value or len(query.shape) != 4:
        return None
    flops = 4 * query.elements * key.shape[-2] * (0.5 if "True" in call.values else 1)
    return Work(flops, 2 * query.bytes + key.bytes + value.bytes)


def _attention_backward(call: Call) -> Work | None:
    """Five products where forward has two; the gradient of the output comes first."""
    if not call.tensor(0):
        return None
    forward = _attention(Call(call.inputs[1:], call.values[1:]))
    return Work(2.5 * forward.flops, 2 * forward.bytes) if forward else None


def _embedding(call: Call) -> Work | None:
    weight, index = call.tensor(0), call.tensor(1)
    if not weight or not index or len(weight.shape) != 2:
        return None
    rows = index.elements * weight.shape[1] * weight.width
    return Work(0, 2 * rows + index.bytes)


def _pass(call: Call) -> Work | None:
    """Every input is read, and as much as the largest of them is written."""
    elements = max((sum(t.elements for t in tensors) for tensors in call.inputs), default=0)
    sizes = [sum(tensor.bytes for tensor in tensors) for tensors in call.inputs]
    return Work(elements, sum(sizes) + max(sizes)) if elements else None


def _reduction(call: Call) -> Work | None:
    """Every input is read; what is written is small."""
    sizes = [tensor.bytes for tensors in call.inputs for tensor in tensors]
    elements = sum(tensor.elements for tensors in call.inputs for tensor in tensors)
    return Work(elements, sum(sizes)) if elements else None


# The first that matches an operator's whole name counts.
_FORMULAS: tuple[tuple[re.Pattern[str], Formula], ...] = tuple(
    (re.compile(pattern), formula)
    for pattern, formula in (
        (r"aten::(mm|bmm|matmul)(\.out)?", _product(0, 1)),
        (r"aten::(addmm_?|baddbmm_?|_addmm_activation)(\.out)?", _product(1, 2)),
        (r"aten::(linear|mkldnn_linear|_mkl_linear)", _product(0, 1, transposed=True)),
        (r"aten::convolution_backward", _convolution_backward),
        (r"aten::_?convolution|aten::conv[123]d|aten::convolution_overrideable", _convolution),
        (r"aten::_scaled_dot_product_\w*backward", _attention_backward),
        (r"aten::_scaled_dot_product_\w+_attention\w*", _attention),
        (r"aten::embedding", _embedding),
        (r"aten::(sum|mean|amax|argmax|norm|linalg_vector_norm|_foreach_norm|std|var)(\.\w+)?",
         _reduction),
        (r"aten::(t|view|reshape|expand|as_strided|transpose|permute|select|slice|detach|empty\w*"
         r"|result_type|unsqueeze|squeeze|resize_|set_|alias|item|narrow|split|chunk"
         r"|_local_scalar_dense|is_nonzero|to)", lambda call: None),
        (r"aten::(add|sub|mul|div|copy|fill|zero|sqrt|rsqrt|exp|pow|neg|abs|lerp|addcmul|addcdiv"
         r"|where|masked_fill|relu|gelu|silu|sigmoid|tanh|threshold_backward|clamp\w*|clone|cat"
         r"|gelu_backward|silu_backward|sigmoid_backward|tanh_backward|hardtanh\w*|_softmax"
         r"|_log_softmax|_softmax_backward_data|_log_softmax_backward_data|native_dropout"
         r"|native_dropout_backward|native_batch_norm|native_layer_norm\w*|native_group_norm\w*"
         r"|native_batch_norm_backward|cudnn_batch_norm\w*|miopen_batch_norm\w*|bernoulli"
         r"|max_pool2d_with_indices\w*|avg_pool2d\w*|_foreach_\w+|_fused_\w+|gt|ge|lt|le|eq|ne"
         r"|bitwise_\w+|logical_\w+|_to_copy)_?(\.\w+)?", _pass),
    )
)  # fmt: skip


def work_of(name: str, call: Call) -> Work | None:
    """What an operator does, None where its name or what it was given does not tell.

    Example:
        >>> a = Tensor((8, 4), 4)
        >>> work_of("aten::mm", Call(((a,), (Tensor((4, 2), 4),)), ()))
        Work(flops=128, bytes=224)
    """
    formula = _formula(name)
    return formula(call) if formula else None


def _formula(name: str) -> Formula | None:
    return next((formula for test, formula in _FORMULAS if test.fullmatch(name)), None)


_known: WeakKeyDictionary[Trace, tuple[Floats, Floats]] = WeakKeyDictionary()


def work_of_operators(trace: Trace) -> tuple[Floats, Floats]:
    """Operations and bytes of every event, float64, shape (events,); nan where not known.

    Arguments are many and parsed once a trace.
    """
    if trace not in _known:
        _known[trace] = _work_of_operators(trace)
    return _known[trace]


def _work_of_operators(trace: Trace) -> tuple[Floats, Floats]:
    names = trace.events.text("name")
    told = trace.events.text("category").mask("cpu_op")
    rows = np.flatnonzero(told & names.where(lambda name: _formula(name) is not None))
    rows = rows[np.argsort(trace.events["source"][rows], kind="stable")]
    flops, size = np.full((2, len(trace.events)), np.nan)
    for row in rows.tolist():
        if work := work_of(str(names[row]), call_of(trace, row)):
            flops[row], size[row] = work
    return flops, size


COMPUTE_KINDS = tuple(KERNEL_KINDS.index(kind) for kind in ("gemm", "convolution", "attention"))
