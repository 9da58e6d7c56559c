"""The products of an operator as sizes of matrices, and the time of its kernels in a precision.

A convolution is the product of its unfolded input with its filters, once forward and twice
backward; a recurrent layer one product for all inputs and one for each element of the sequence.
Sources: Chetlur et al., "cuDNN: Efficient Primitives for Deep Learning", 2014, section 3; Appleyard
et al., "Optimizing Performance of Recurrent Neural Networks on GPUs", 2016, section 3.
"""

from collections.abc import Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import NamedTuple

from stepscope.facts.roofline.formulas import OperatorCall, output_sizes
from stepscope.models.calibration.calibration import Operator
from stepscope.models.kernels.products import (
    ALIGNED,
    BYTES,
    HALF,
    TF32,
    Gpu,
    bandwidth_reached,
    begin_ns,
    product_ns,
)

Size = tuple[int, ...]


_PLAIN: Mapping[str, float] = MappingProxyType({})


class Product(NamedTuple):
    """(rows, inner) times (inner, columns)."""

    rows: int
    columns: int
    inner: int
    batch: int = 1  # how many at once
    times: int = 1  # how many after each other
    # elements from one row, or column, of the operands and the result to the next
    lines: tuple[int, ...] = ()
    elements: int | None = None  # that are read and written, if not those of the matrices
    slower: Mapping[str, float] = _PLAIN  # than a plain product of these sizes, by precision


# -- products of each kind of operator


def tensors(call: Operator) -> list[Size]:
    """Sizes of the arguments that are tensors, in order."""
    return [tuple(size) for size in call.dims if size and isinstance(size[0], int)]


def products_of(call: Operator, forward: Operator | None = None) -> list[Product]:
    """The products that an operator computes; empty if it computes none or sizes are missing. Of a
    backward operator, `forward` is the one that it differentiates."""
    sizes = tensors(call)
    if call.name in _PRODUCTS and len(sizes) > 1:
        return _matrix_products(call, sizes)
    if call.name in _CONVOLUTIONS and len(sizes) > 1:
        convolution = Convolution.of(call)
        return convolution.forward() if convolution else []
    if call.name == "convolution_backward" and forward is not None:
        convolution = Convolution.of(forward)
        return convolution.backward(call) if convolution else []
    if call.name in _RECURRENT:
        return _recurrent(call, backward=False)
    if call.name == "_cudnn_rnn_backward" and forward is not None:
        return _recurrent(forward, backward=True)
    return []


_PRODUCTS = {
    "linear": (0, 1),
    "addmm": (1, 2),
    "mm": (0, 1),
    "bmm": (0, 1),
    "baddbmm": (1, 2),
    "matmul": (0, 1),
}
_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
_RECURRENT = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}  # gates
WEIGHTED = ("linear", "addmm", "mm", *_CONVOLUTIONS, *_RECURRENT)  # all but the first value are parameters
ATTENTION = ("scaled_dot_product_attention",)


def _matrix_products(call: Operator, sizes: list[Size]) -> list[Product]:
    places = _PRODUCTS[call.name]
    if max(places) >= len(sizes):
        return []
    left, right = (sizes[place] for place in places)
    if call.name == "linear":
        return [Product(prod(left[:-1]), right[0], left[-1], lines=(right[0], left[-1]))]
    if len(left) < 2 or len(right) < 2:
        return []
    strides = [call.strides[place] for place in places if place < len(call.strides)]
    lines = (right[-1], *(max(stride[-2:]) for stride in strides if len(stride) > 1))
    if len(right) == 2:
        return [Product(prod(left[:-1]), right[1], left[-1], lines=lines)]
    count = max(prod(left[:-2]), prod(right[:-2]))  # either may be one matrix for all
    return [Product(left[-2], right[-1], left[-1], batch=count, lines=lines)]


_RANKS = 3, 4, 5  # of the input of a convolution: images, channels and one to three axes


class Convolution(NamedTuple):
    """A convolution's sizes."""

    places: int  # of the result (of the input, if transposed) times images
    channels: int
    out: int
    taps: int  # inputs of a result of one group: its channels times the filter's size
    groups: int
    inputs: int  # elements
    filters: int  # elements
    results: int  # elements
    channels_last: bool  # whether the recorded input is laid out so

    @classmethod
    def of(cls, call: Operator) -> "Convolution | None":
        """From the call of a forward operator; None without stride, padding and dilation, or with
        those that no convolution has."""
        data, weight = (*tensors(call), (), ())[:2]
        transposed = "transpose" in call.name
        if len(data) not in _RANKS or len(data) != len(weight) or 0 in weight:
            return None
        spatial = output_sizes(data, weight, OperatorCall((), call.values), transposed)
        if spatial is None:
            return None
        first, second = weight[:2]
        out = second * max(data[1] // first, 1) if transposed else first
        groups = 1 if transposed else max(data[1] // second, 1)
        places = data[0] * prod(data[2:] if transposed else spatial)
        strides = call.strides[0]
        return cls(
            places=places,
            channels=data[1],
            out=out,
            taps=second * prod(weight[2:]) if not transposed else first,
            groups=groups,
            inputs=prod(data),
            filters=prod(weight),
            results=data[0] * out * prod(spatial),
            channels_last=len(strides) > 2 and strides[1] == 1 and data[1] > 1,
        )

    def forward(self) -> list[Product]:
        return [self._product(self.places, self._width, self.taps, _FORWARD)]

    def backward(self, call: Operator) -> list[Product]:
        """Gradients of the input and the filters, as far as `call` wants them."""
        wanted = (call.values[-1].lower() if call.values else "").strip("[]").split(",")
        result = []
        if "true" in wanted[0] or len(wanted) < 2:
            inner = self._width * self.taps // max(self.channels // self.groups, 1)
            result.append(self._product(self.places, self.channels // self.groups, inner, _OF_INPUT))
        if "true" in wanted[min(1, len(wanted) - 1)] or len(wanted) < 2:
            result.append(self._product(self._width, self.taps, self.places, _OF_FILTERS))
        return result

    @property
    def _width(self) -> int:
        return max(self.filters // max(self.taps * self.groups, 1), 1)

    def _product(
        self, rows: int, columns: int, inner: int, slower: tuple[Mapping[str, float], Mapping[str, float]]
    ) -> Product:
        few = bool(self.channels % _CHANNELS)
        moved = self.inputs + self.filters + self.results
        return Product(rows, columns, inner, batch=self.groups, elements=moved, slower=slower[few])


# A convolution's time over that of the product of its sizes, with a multiple of 8 channels and with
# other numbers. 16 bits: medians of DeepBench's convolutions in FP16 on a V100. TF32: U-Net and
# ResNet-50 on an H200, 2.0 and 2.2; each from the other within 5 % of the step.
CONVOLUTION_IN_TF32 = 2.1  # as above
_FORWARD = {HALF: 1.05, TF32: CONVOLUTION_IN_TF32}, {HALF: 4.7, TF32: 4.7}
_OF_INPUT = {HALF: 1.31, TF32: CONVOLUTION_IN_TF32}, {HALF: 4.7, TF32: 4.7}
_OF_FILTERS = {HALF: 1.37, TF32: CONVOLUTION_IN_TF32}, {HALF: 22.5, TF32: 22.5}
_CHANNELS = 8  # 16 bytes in 16 bits


def _recurrent(call: Operator, backward: bool) -> list[Product]:
    """Source: PyTorch, `torch.nn.LSTM`, "Shape" and "Variables"."""
    data = tensors(call)[:1]
    lists = [size for size in call.dims if size and isinstance(size[0], (list, tuple))]
    weights = [tuple(size) for size in (lists[-1] if lists else []) if len(size) == 2]
    if not data or len(data[0]) != 3 or not weights:
        return []
    first, second, _ = data[0]
    batch_first = call.values[-1:] == ("True",)
    length, batch = (second, first) if batch_first else (first, second)
    result = []
    for place, (rows, columns) in enumerate(weights):
        of_inputs = place % 2 == 0
        steps, lines = (1, length * batch) if of_inputs else (length, batch)
        if not backward:
            result.append(Product(lines, rows, columns, times=steps))
        else:
            result.append(Product(lines, columns, rows, times=steps))
            result.append(Product(rows, columns, length * batch))
    return result


# -- times


# Attention of PyTorch reaches this share of the peak. Sources: Dao, "FlashAttention-2", 2023,
# section 4.1 (A100: 0.5 to 0.73); Shah et al., "FlashAttention-3", 2024, abstract (H100: 0.35).
_ATTENTION_SHARE = {False: 0.6, True: 0.35}
_TRANSPOSED = 0.54  # of the data sheet's bandwidth that changes of layout reach; ResNet-50 on an H200


def products_ns(products: Sequence[Product], precision: str, gpu: Gpu) -> float:
    """The time of products, one kernel after the other, ns."""
    return sum(_product_ns(one, precision, gpu) for one in products)


def padded(product: Product) -> Product:
    """A product of sizes that are multiples of what aligns rows in 16 bits."""
    if not any(line % _CHANNELS for line in product.lines):
        return product
    rows, columns, inner = (-(-size // _CHANNELS) * _CHANNELS for size in product[:3])
    return product._replace(rows=rows, columns=columns, inner=inner, lines=())


def _product_ns(one: Product, precision: str, gpu: Gpu) -> float:
    sizes = one.rows, one.columns, one.inner
    aligned = not any(BYTES[precision] * line % ALIGNED for line in one.lines)
    time = product_ns(*sizes, precision, gpu, batch=one.batch, elements=one.elements, aligned=aligned)
    return float(time) * one.times * one.slower.get(precision, 1.0)


def launches_of(products: Sequence[Product]) -> int:
    """How many kernels compute products."""
    return sum(one.times for one in products)


def attention_ns(flops: float, moved: float, precision: str, gpu: Gpu, kernels: int = 1) -> float:
    """The time of fused attention, by operations and bytes, ns."""
    computing = flops / (gpu.rate(precision) * _ATTENTION_SHARE[gpu.persistent])
    return max(computing, moved / bandwidth_reached(gpu)) + kernels * begin_ns(gpu)


def transposing_ns(elements: float, gpu: Gpu) -> float:
    """The time to change the layout of 16-bit values between channels first and last, ns."""
    return 2 * BYTES[HALF] * elements / (gpu.bandwidth * _TRANSPOSED)
