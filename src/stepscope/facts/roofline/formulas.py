"""Operations that an operator computes and bytes that it moves, from its recorded arguments.

Formulas give the minimum work: each input is read once, each output is written once, and a multiply
and add counts as two operations."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import nan, prod
from typing import Any, NamedTuple

from stepscope.trace.arguments import element_bytes
from stepscope.trace.trace import Trace

_MOST = 1 << 63  # elements or operations: PyTorch counts in 64 bits, and products of a few stay finite


@dataclass(frozen=True)
class Tensor:
    """A tensor: its shape, and bytes per element (0 if its type is unknown)."""

    shape: tuple[int, ...]
    width: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return self.elements * self.width


@dataclass(frozen=True)
class OperatorCall:
    """The recorded arguments of one operator."""

    # tensors of each argument: one, several for a list, none for other types
    inputs: tuple[tuple[Tensor, ...], ...]
    values: tuple[str, ...]  # value of each argument as text, empty if not recorded
    recorded_flops: float | None = None  # operations, if the recorder gives them
    recorded_bytes: float | None = None  # bytes moved, if the recorder gives them

    def tensor(self, place: int) -> Tensor | None:
        """The tensor argument at a position, None if there is none."""
        found = self.inputs[place] if place < len(self.inputs) else ()
        return found[0] if len(found) == 1 else None

    def numbers(self, place: int) -> list[int] | None:
        """The integer-list argument at a position, None if it is not one."""
        try:
            value = json.loads(self.values[place].lower())
        except (IndexError, ValueError, RecursionError):
            return None
        is_list = isinstance(value, list) and all(isinstance(number, int) for number in value)
        return value if is_list else None

    def is_true(self, place: int) -> bool:
        """Whether the argument at a position is known to be true."""
        return self.values[place : place + 1] == ("True",)

    @property
    def width(self) -> int:
        """Bytes per element of a product's operands, 0 if unknown.

        The second argument of every product is an operand; the first may be a bias.
        """
        second = self.tensor(1)
        return second.width if second else 0


def call_of(trace: Trace, event: int) -> OperatorCall:
    """The arguments of an operator call; without inputs if shapes were not recorded."""
    return read_call(trace.event_arguments(event))


def read_call(arguments: Mapping[str, Any]) -> OperatorCall:
    """A call from an event's arguments.

    Source: Kineto's trace format, `Input Dims`, `Input type` and `Concrete Inputs`; inductor,
    `runtime/triton_heuristics.py`, `kernel_flop` and `kernel_num_gb`.
    """
    dims, types = arguments.get("Input Dims"), arguments.get("Input type")
    values = arguments.get("Concrete Inputs")
    written = (arguments.get(key) for key in ("kernel_flop", "kernel_num_gb"))  # 0 if unknown
    flops, size_gb = (
        float(value) if isinstance(value, int | float) and 0 < value < _MOST else None for value in written
    )
    recorded = flops, None if size_gb is None else size_gb * 1e9
    if not isinstance(dims, list) or not isinstance(types, list):
        return OperatorCall((), (), *recorded)
    inputs = tuple(_tensors(shape, str(kind)) for shape, kind in zip(dims, types, strict=False))
    texts = tuple(map(str, values)) if isinstance(values, list) else ()
    return OperatorCall(inputs, texts, *recorded)


def _tensors(dims: Any, kind: str) -> tuple[Tensor, ...]:
    if not isinstance(dims, list):
        return ()
    if dims and all(isinstance(shape, list) for shape in dims):
        return tuple(tensor for shape in dims for tensor in _tensors(shape, kind))
    width = element_bytes(kind)
    is_tensor = width > 0 or (kind == "TensorList" and bool(dims))
    is_shape = all(isinstance(size, int) and size >= 0 for size in dims)
    if not is_tensor or not is_shape or prod(dims) >= _MOST:
        return ()
    return (Tensor(tuple(dims), width or 4),)


class Work(NamedTuple):
    """Floating-point operations, and bytes read and written; nan if unknown."""

    flops: float
    bytes: float


Formula = Callable[[OperatorCall], "Work | None"]


# -- products


def _product(left: int, right: int, transposed: bool = False) -> Formula:
    """A matrix product of the arguments at two positions, batched or not."""

    def formula(call: OperatorCall) -> Work | None:
        a, b = call.tensor(left), call.tensor(right)
        if not a or not b or len(a.shape) < 2 or len(b.shape) < 2:
            return None
        columns = b.shape[-2 if transposed else -1]
        out = a.elements // max(a.shape[-1], 1) * columns
        return Work(2 * out * a.shape[-1], a.bytes + b.bytes + out * a.width)

    return formula


def _matrix_vector(matrix: int) -> Formula:
    def formula(call: OperatorCall) -> Work | None:
        a = call.tensor(matrix)
        return Work(2 * a.elements, a.bytes) if a and len(a.shape) == 2 else None

    return formula


def _recurrent(products: int) -> Formula:
    """A recurrent layer, or a stack of them: each matrix of weights applies to every element.

    Source: PyTorch, `torch.nn.LSTM`, "Shape" and "Variables"; packed sequences have two dimensions.
    """

    def formula(call: OperatorCall) -> Work | None:
        x = call.tensor(0)
        matrices = [tensor for given in call.inputs[1:3] for tensor in given if len(tensor.shape) == 2]
        if not x or len(x.shape) not in (2, 3) or not matrices:
            return None
        elements = x.elements // max(x.shape[-1], 1)
        return Work(products * 2 * elements * sum(tensor.elements for tensor in matrices), nan)

    return formula


def _convolution(call: OperatorCall) -> Work | None:
    """Source: PyTorch, `torch.nn.Conv2d`, "Shape"."""
    x, weight = call.tensor(0), call.tensor(1)
    if not x or not weight or len(x.shape) != len(weight.shape) or len(x.shape) < 3:
        return None
    if call.is_true(6):  # transposed: the filter applies to every input element
        return Work(2 * x.elements * prod(weight.shape[1:]), nan)
    spatial = output_sizes(x.shape, weight.shape, call)
    if spatial is None:
        return None
    out = x.shape[0] * weight.shape[0] * prod(spatial)
    return Work(2 * out * prod(weight.shape[1:]), x.bytes + weight.bytes + out * x.width)


def output_sizes(
    x: tuple[int, ...], weight: tuple[int, ...], call: OperatorCall, transposed: bool = False
) -> list[int] | None:
    """The sizes of a convolution's result, without images and channels, by the shapes of input and weight;
    None without stride, padding and dilation, or with those that no convolution has.

    Source: PyTorch, `torch.nn.Conv2d` and `ConvTranspose2d`, "Shape".
    """
    count = len(x) - 2
    lists = [call.numbers(place) or [] for place in ((3, 4, 7, 5) if transposed else (3, 4, 5))]
    stride, pad, space, *extra = [values * count if len(values) == 1 else values for values in lists]
    if any(len(values) != count for values in (stride, pad, space, *extra)) or min(stride) < 1:
        return None
    rows = zip(x[2:], weight[2:], stride, pad, space, *(extra or [[0] * count]), strict=True)
    if transposed:
        found = [(n - 1) * s - 2 * p + d * (k - 1) + more + 1 for n, k, s, p, d, more in rows]
    else:
        found = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d, _ in rows]
    return found if min(found) >= 0 and prod(found) < _MOST else None


def _convolution_backward(call: OperatorCall) -> Work | None:
    """Gradients of input and weight; each costs as much as forward."""
    gradient, x, weight = (call.tensor(place) for place in range(3))
    if not gradient or not x or not weight:
        return None
    once = 2 * (x if call.is_true(7) else gradient).elements * prod(weight.shape[1:])
    mask = call.values[-1].lower() if call.values else ""
    wanted = sum("true" in flag for flag in mask.strip("[]").split(",")[:2]) or 2
    return Work(wanted * once, gradient.bytes + wanted * (x.bytes + weight.bytes))


def _one_gradient(call: OperatorCall) -> Work | None:
    """PyTorch of 2021 has an operator for both gradients, with a nested one for the input's.

    So the kernels of the outer operator itself compute the weight's gradient.
    """
    gradient, weight = call.tensor(1), call.tensor(2)
    if not gradient or not weight or len(weight.shape) < 3:
        return None
    return Work(2 * gradient.elements * prod(weight.shape[1:]), 2 * gradient.bytes + weight.bytes)


def _attention(causal: int, heads_last: bool = False) -> Formula:
    """Two products (query with key, weights with value); half of that if the argument at `causal` is set.

    Shapes are (batch, heads, sequence, size), or with the heads before the size.
    Source: Dao, "FlashAttention-2", 2023, section 4.1.
    """

    def formula(call: OperatorCall) -> Work | None:
        query, key, value = (call.tensor(place) for place in range(3))
        if not query or not key or not value or any(len(t.shape) != 4 for t in (query, key, value)):
            return None
        length = key.shape[-3 if heads_last else -2]
        rows = query.elements // max(query.shape[-1], 1)
        flops = 2 * rows * length * (query.shape[-1] + value.shape[-1])
        out = rows * value.shape[-1] * query.width
        half = 0.5 if call.is_true(causal) else 1
        return Work(flops * half, query.bytes + key.bytes + value.bytes + out)

    return formula


def _attention_backward(causal: int, heads_last: bool = False) -> Formula:
    """Five products where forward has two; the first argument is the output's gradient."""
    once = _attention(causal - 1, heads_last)

    def formula(call: OperatorCall) -> Work | None:
        forward = once(OperatorCall(call.inputs[1:], call.values[1:])) if call.tensor(0) else None
        return Work(2.5 * forward.flops, 2 * forward.bytes) if forward else None

    return formula


# -- memory-bound operators


def _embedding(call: OperatorCall) -> Work | None:
    weight, index = call.tensor(0), call.tensor(1)
    if not weight or not index or len(weight.shape) != 2:
        return None
    rows = index.elements * weight.shape[1] * weight.width
    return Work(0, 2 * rows + index.bytes)


def _elementwise(inputs: int | None) -> Formula:
    """Reads the inputs (None: all), and writes as many bytes as the largest tensor has.

    A tensor after the inputs is the output.
    """

    def formula(call: OperatorCall) -> Work | None:
        elements = max((sum(t.elements for t in tensors) for tensors in call.inputs), default=0)
        sizes = [sum(tensor.bytes for tensor in tensors) for tensors in call.inputs]
        return Work(elements, sum(sizes[:inputs]) + max(sizes)) if elements else None

    return formula


def _copy(call: OperatorCall) -> Work | None:
    """Reads the second tensor, writes the first."""
    return _reduction(OperatorCall(call.inputs[:2], ()))


def _reduction(call: OperatorCall) -> Work | None:
    """Reads every input; the output is small."""
    sizes = [tensor.bytes for tensors in call.inputs for tensor in tensors]
    elements = sum(tensor.elements for tensors in call.inputs for tensor in tensors)
    return Work(elements, sum(sizes)) if elements else None


# The first pattern that matches the full name of an operator counts.
_PRODUCTS: tuple[tuple[str, Formula], ...] = (
    (r"aten::(mm|bmm|matmul|_scaled_mm|_int_mm|_grouped_mm|_scaled_grouped_mm)(\.out)?", _product(0, 1)),
    (r"aten::(addmm_?|baddbmm_?|_addmm_activation)(\.out)?", _product(1, 2)),
    (r"aten::(linear|mkldnn_linear|_mkl_linear)", _product(0, 1, transposed=True)),
    (r"aten::mv", _matrix_vector(0)),
    (r"aten::addmv_?", _matrix_vector(1)),
    (r"aten::convolution_backward", _convolution_backward),
    (r"aten::cudnn_convolution_backward(_input)?", _one_gradient),
    (r"aten::_?convolution|aten::conv[123]d|aten::convolution_overrideable", _convolution),
    # In PyTorch of 2021 only the gradient of a library's convolution has the shapes.
    (r"aten::(cudnn|miopen|mkldnn)_convolution", lambda call: None),
    (r"aten::(mkldnn_rnn_layer|_cudnn_rnn|miopen_rnn)", _recurrent(1)),
    (r"aten::(mkldnn_rnn_layer|_cudnn_rnn|miopen_rnn)_backward", _recurrent(2)),
    (r"aten::_scaled_dot_product_flash_attention(_for_cpu)?", _attention(4)),
    (r"aten::_scaled_dot_product_(efficient|cudnn)_attention", _attention(6)),
    (r"aten::_scaled_dot_product_fused_attention_overrideable", _attention(5)),
    (r"aten::_scaled_dot_product_(flash|efficient)_attention_backward", _attention_backward(11)),
    (r"aten::_scaled_dot_product_flash_attention_for_cpu_backward", _attention_backward(7)),
    (r"aten::_scaled_dot_product_cudnn_attention_backward", _attention_backward(14)),
    (r"aten::_scaled_dot_product_fused_attention_overrideable_backward", _attention_backward(13)),
    (r"flash_attn::_flash_attn_forward", _attention(5, heads_last=True)),
    (r"flash_attn::_flash_attn_backward", _attention_backward(11, heads_last=True)),
)
_OTHERS: tuple[tuple[str, Formula], ...] = (
    (r"aten::embedding", _embedding),
    (r"aten::(sum|mean|amax|argmax|norm|linalg_vector_norm|_foreach_norm|std|var)(\.\w+)?", _reduction),
    (r"aten::copy_", _copy),
    (r"aten::(fill|zero)_", _elementwise(0)),
    (
        r"aten::(sqrt|rsqrt|exp|neg|abs|relu|gelu|silu|sigmoid|tanh|clamp\w*|clone|_to_copy)_?",
        _elementwise(1),
    ),
    (
        r"aten::(add|sub|mul|div|pow|threshold_backward|(gelu|silu|sigmoid|tanh)_backward"
        r"|gt|ge|lt|le|eq|ne|bitwise_\w+|logical_\w+)_?(\.\w+)?",
        _elementwise(2),
    ),
    (
        r"aten::(lerp|addcmul|addcdiv|where|masked_fill|cat|hardtanh\w*|_softmax"
        r"|_log_softmax|_softmax_backward_data|_log_softmax_backward_data|native_dropout"
        r"|native_dropout_backward|native_batch_norm|native_layer_norm\w*|native_group_norm\w*"
        r"|native_batch_norm_backward|cudnn_batch_norm\w*|miopen_batch_norm\w*|bernoulli"
        r"|max_pool2d_with_indices\w*|avg_pool2d\w*|_foreach_\w+|_fused_\w+)_?(\.\w+)?",
        _elementwise(None),
    ),
    # Kernels of inductor get their outputs as arguments too: each tensor is moved once. That one
    # updated in place is moved twice is not recorded.
    (r"triton_(poi|red|per)_\w+", _reduction),
    (r"triton_\w+", lambda call: None),  # may record its work itself
)
_FORMULAS = tuple((re.compile(pattern), formula) for pattern, formula in (*_PRODUCTS, *_OTHERS))


def work_of(name: str, call: OperatorCall) -> Work | None:
    """The work of an operator, None if its name or its arguments do not determine it."""
    formula = _formula(name)
    found = formula(call) if formula else None
    if call.recorded_flops is None and call.recorded_bytes is None:
        return found
    flops, size = found or Work(nan, nan)
    return Work(
        flops if call.recorded_flops is None else call.recorded_flops,
        size if call.recorded_bytes is None else call.recorded_bytes,
    )


def has_formula(name: str) -> bool:
    """Whether there is a formula for operators of this name."""
    return _formula(name) is not None


def multiplies(name: str) -> bool:
    """Whether an operator is a matrix product, a convolution or attention."""
    formula = _formula(name)
    return any(formula is product for _, product in _PRODUCTS)


@lru_cache(maxsize=1 << 16)
def _formula(name: str) -> Formula | None:
    return next((formula for test, formula in _FORMULAS if test.fullmatch(name)), None)
