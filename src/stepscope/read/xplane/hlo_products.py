"""Shapes of the values in an XLA program, and their sizes.

Source: xla_data.proto (https://github.com/openxla/xla, xla), messages ShapeProto and PrimitiveType.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import gcd, nan, prod, sqrt
from typing import Any, NamedTuple

import numpy as np

from stepscope.read.xplane.protobuf import Span, signed
from stepscope.read.xplane.xspace import XSpaceFile

_TYPES = {  # numbers of the types of elements (PrimitiveType) by their bits
    1: (30, 31),
    2: (26, 27),
    4: (21, 22, 32),
    6: (35, 36),
    8: (1, 2, 6, 19, 20, 23, 24, 25, 28, 29, 33),
    16: (3, 7, 10, 16),
    32: (4, 8, 11),
    64: (5, 9, 12, 15),
    128: (18,),
}
_BITS = {kind: bits for bits, kinds in _TYPES.items() for kind in kinds}
_DEEPEST, _MOST_DIMENSIONS, _MOST_ELEMENTS = 16, 64, 1 << 60  # of a shape; a damaged one has more


class Array(NamedTuple):
    """One array: its dimensions, and bits per element (0 for a token and other things)."""

    dimensions: tuple[int, ...]
    bits: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.dimensions)

    @property
    def bytes(self) -> float:
        """Size without padding."""
        return self.elements * self.bits / 8

    @property
    def width(self) -> int:
        """Bytes per element, rounded up."""
        return -(-self.bits // 8)


Shape = tuple[Array, ...]  # the arrays of a tuple, nested ones too; one for anything else
NO_ARRAY = Array((), 0)


class HloShapes(dict[bytes, Shape]):
    """Shapes by their encoding; programs repeat few of them many times."""

    def __init__(self, source: XSpaceFile) -> None:
        self._source = source

    def at(self, start: int, end: int) -> Shape:
        """The shape that is encoded at a place in the file."""
        key = self._source.data[start:end]
        if key not in self:
            self[key] = tuple(self._arrays(Span(start, end), 0))
        return self[key]

    def _arrays(self, span: Span, depth: int) -> list[Array]:
        inner = self._source.inner(span, 4) if depth < _DEEPEST else []
        if inner:
            return [array for part in inner for array in self._arrays(part, depth + 1)]
        dimensions = tuple(self._source.numbers(span, 3))
        if len(dimensions) > _MOST_DIMENSIONS or prod(filter(None, dimensions)) > _MOST_ELEMENTS:
            self._source.damage.add()
            return []
        return [Array(dimensions, _BITS.get(self._source.number(span, 2), 0))]


def first(shape: Shape) -> Array:
    """The first array of a shape, an empty one if there is none."""
    return shape[0] if shape else NO_ARRAY


def size(shape: Shape) -> float:
    """Bytes of all arrays of a shape."""
    return sum(array.bytes for array in shape)


_MOST_POSITIONS = 1 << 16  # of a window; XLA's loop over them is also bounded by patience
_CUDNN_CONVOLUTION = "__cudnn$conv"
_ATTENTION = "__cudnn$fmha"
_BACKWARD_PRODUCTS = 2.5  # five products where forward has two


class HloProduct(NamedTuple):
    """The work of a product."""

    kind: str  # `gemm`, `convolution` or `attention`, of `events.kind`; empty if it is none of them
    flops: float = nan  # its operations, nan if unknown
    bytes: float = nan  # bytes that it moves, if the program states them; else nan
    sizes: tuple[int, ...] = ()  # of a matrix product: rows, contracted size, columns; else empty


def dot(source: XSpaceFile, span: Span, operands: Sequence[Shape], result: Shape) -> HloProduct:
    """`dot`: each element of the result sums over the contracted dimensions."""
    if not operands:
        return HloProduct("gemm")
    (numbers,) = source.inner(span, 30)[-1:] or [Span(0, 0)]
    return _dot(operands[0], source.numbers(numbers, 1), source.numbers(numbers, 3), result)


def _dot(left: Shape, contracted: Sequence[int], batch: Sequence[int], result: Shape) -> HloProduct:
    sizes = first(left).dimensions
    numbers = (*contracted, *batch)
    if len({*numbers} & {*range(len(sizes))}) < len(numbers):  # some are none, or twice
        return HloProduct("gemm")
    depth, many = (prod(sizes[number] for number in of) for of in (contracted, batch))
    elements = first(result).elements
    rows = first(left).elements // max(depth * many, 1)
    return HloProduct("gemm", 2.0 * elements * depth, sizes=(rows, depth, elements // max(rows * many, 1)))


def convolution(source: XSpaceFile, span: Span, arrays: Sequence[Array]) -> HloProduct:
    """`convolution`, given its input, filter and output."""
    if len(arrays) < 3:  # a damaged program
        return HloProduct("convolution", 0.0)
    return HloProduct("convolution", _convolution(source, span, *arrays[:3]))


def _convolution(source: XSpaceFile, span: Span, x: Array, weight: Array, out: Array) -> float:
    (numbers,) = source.inner(span, 16)[-1:] or [Span(0, 0)]
    window = [dimension for part in source.inner(span, 15) for dimension in source.inner(part, 1)]
    groups = max(source.number(span, 50), 1) * max(source.number(span, 58), 1)
    spatial = [source.numbers(numbers, field) for field in (11, 6, 12)]
    try:
        batch, features = (x.dimensions[source.number(numbers, field)] for field in (7, 8))
        filters = out.dimensions[source.number(numbers, 10)]
        sizes = [
            [array.dimensions[number] for number in places]
            for array, places in zip((x, weight, out), spatial, strict=True)
        ]
        positions = [
            _positions(source, _window(source, dimension), *each)
            for dimension, *each in zip(window, *sizes, strict=True)
        ]
    except (IndexError, ValueError, OverflowError):
        return nan
    return 2.0 * batch * features * filters * prod(positions) / groups


class _FilterWindow(NamedTuple):
    stride: int
    padding: int
    dilation: int
    input_dilation: int


def _window(source: XSpaceFile, span: Span) -> _FilterWindow:
    stride, dilation, spread = (max(source.number(span, field), 1) for field in (2, 5, 6))
    return _FilterWindow(stride, signed(source.number(span, 3)), dilation, spread)


def _positions(source: XSpaceFile, window: _FilterWindow, size: int, kernel: int, out: int) -> float:
    """Pairs of an output and a filter element, in one dimension, that meet an input element.

    Output o and filter element k meet the input at (o * stride + k * dilation - padding), if that
    is an element and neither padding nor a hole between spread elements. One of the two is counted
    for each value of the other, so that long filters (gradients of weights) cost little.
    """
    if min(kernel, out) > _MOST_POSITIONS:
        return nan
    source.spend(range(min(kernel, out) >> 4))  # NumPy takes as long for 16 as Python for one
    few, step, many, stride = (
        (kernel, window.dilation, out, window.stride)
        if kernel <= out
        else (out, window.stride, kernel, window.dilation)
    )
    at = np.arange(few, dtype=np.int64) * step - window.padding
    last = (size - 1) * window.input_dilation
    lowest, highest = -(at // stride), (last - at) // stride  # where 0 <= at + stride * n <= last
    period = window.input_dilation // gcd(stride, window.input_dilation)
    meets = at % gcd(stride, window.input_dilation) == 0
    begin = _first_multiple(at, stride, window.input_dilation, period)
    low, high = np.maximum(lowest, 0), np.minimum(highest, many - 1)
    count = (high - begin) // period - (low - 1 - begin) // period
    return float(np.where(meets & (high >= low), count, 0).sum())


def _first_multiple(at: Any, stride: int, spread: int, period: int) -> Any:
    """The n in [0, period) for which `at + stride * n` is a multiple of `spread`."""
    if period == 1:
        return np.zeros_like(at)
    shared = gcd(stride, spread)
    return -(at // shared) * pow(stride // shared, -1, period) % period


# -- calls of libraries


def library_call(source: XSpaceFile, span: Span, operands: Sequence[Shape], result: Shape) -> HloProduct:
    """A `custom-call` of a library; unknown targets have unknown work."""
    target, settings = source.last_text(span, 28), _settings(source.last_text(span, 43))
    if estimate := _find(settings, "cost_estimate"):  # Pallas: as the kernel's author states it
        return HloProduct(_kind(target), _number(estimate, "flops"), _number(estimate, "bytes_accessed"))
    if target.startswith(_ATTENTION):
        return _attention(target, settings, operands, result)
    if target.startswith(_CUDNN_CONVOLUTION) and len(operands) > 1:
        arrays = _forward(target, first(operands[0]), first(operands[1]), first(result))
        return HloProduct("convolution", _convolution(source, span, *arrays))
    if "gemm" in target or "matmul" in target:
        return _library_product(settings, operands, result)
    return HloProduct(_kind(target))


def _kind(target: str) -> str:
    lower = target.lower()
    words = {"attention": "attention", "fmha": "attention", "conv": "convolution", "gemm": "gemm"}
    return next((kind for word, kind in words.items() if word in lower), "")


def _forward(target: str, left: Array, right: Array, result: Array) -> tuple[Array, Array, Array]:
    """Input, filter and output of the forward convolution that a call computes a gradient of."""
    if "BackwardInput" in target:
        return result, right, left
    if "BackwardFilter" in target:
        return left, result, right
    return left, right, result


def _library_product(settings: Mapping[str, Any], operands: Sequence[Shape], result: Shape) -> HloProduct:
    """A product by its contracted dimensions, else by the sizes of both operands and the result.

    m*k, k*n and m*n multiply to the square of m*k*n, for each matrix of a batch.
    """
    if len(operands) < 2:
        return HloProduct("gemm")
    if numbers := _find(settings, "dot_dimension_numbers"):
        names = ("lhs_contracting_dimensions", "lhs_batch_dimensions")
        contracted, many = (_integers(numbers, name) for name in names)
        return _dot(operands[0], contracted, many, result)
    sizes = [first(shape) for shape in (*operands[:2], result)]
    batch = max(prod(sizes[1].dimensions[:-2]), 1)
    return HloProduct("gemm", 2 * sqrt(prod(array.elements for array in sizes) / batch))


def _attention(
    target: str, settings: Mapping[str, Any], operands: Sequence[Shape], result: Shape
) -> HloProduct:
    """Two products over the scores, five backward; half of that if causal, as it is computed."""
    sizes = _integers(_find(settings, "intermediate_tensor_shape") or {}, "dimensions")
    if len(sizes) != 4 or len(operands) < 3 or not prod(sizes):
        return HloProduct("attention")
    batch, heads, queries, _ = sizes
    backward = "Backward" in target
    rows = batch * heads * queries
    query = first(operands[0]).elements / rows
    value = query if backward else first(result).elements / rows
    flops = 2.0 * prod(sizes) * (query + value) * (_BACKWARD_PRODUCTS if backward else 1)
    mask = _find(settings, "cudnn_fmha_backend_config") or {}
    return HloProduct("attention", flops * (0.5 if "CAUSAL" in str(mask.get("mask_type")) else 1))


def _settings(text: str) -> Mapping[str, Any]:
    with suppress(ValueError, RecursionError):
        found = json.loads(text) if text.startswith("{") else {}
        return found if isinstance(found, Mapping) else {}
    return {}


def _find(settings: Mapping[str, Any], key: str) -> Mapping[str, Any] | None:
    """The object under a key, at the top or one or two levels down; XLA nests them by library."""
    level: list[Mapping[str, Any]] = [settings]
    for _ in range(3):
        for part in level:
            if isinstance(part.get(key), Mapping):
                return part[key]
        level = [inner for part in level for inner in part.values() if isinstance(inner, Mapping)]
    return None


def _integers(values: Mapping[str, Any], key: str) -> list[int]:
    """A list of sizes, which protobuf writes as text; empty if it is none."""
    found = values.get(key)
    with suppress(TypeError, ValueError, OverflowError):
        sizes = [int(number) for number in found] if isinstance(found, list) else []
        return sizes if all(0 <= size <= _MOST_ELEMENTS for size in sizes) else []
    return []


def _number(values: Mapping[str, Any], key: str) -> float:
    with suppress(KeyError, TypeError, ValueError, OverflowError):
        return float(int(values[key]))
    return nan
