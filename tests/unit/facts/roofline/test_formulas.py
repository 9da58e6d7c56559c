"""Operations and bytes of operators from their arguments, computed by hand."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from stepscope.facts.roofline.formulas import OperatorCall, Tensor, multiplies, read_call, work_of


def call(*shapes: list[int] | None, values: tuple[str, ...] = (), width: int = 4) -> OperatorCall:
    """A call with tensors of these shapes, None for arguments that are not tensors."""
    return OperatorCall(tuple(() if s is None else (Tensor(tuple(s), width),) for s in shapes), values)


def tensors(*shape: int) -> tuple[Tensor, ...]:
    """An argument: a tensor of this shape; added up, a list of tensors."""
    return (Tensor(shape, 4),)


HEADS = [1, 2, 16, 8]  # 2 heads, 16 queries and keys of 8 numbers
FORWARD = 2 * 2 * 2 * 16 * 16 * 8  # two products of 16 x 16 x 8 a head


@pytest.mark.parametrize(
    ("name", "given", "flops", "moved"),
    [
        # [8, 4] by [4, 2]: 8 * 2 results of 4 products each.
        ("aten::mm", call([8, 4], [4, 2]), 2 * 8 * 2 * 4, 4 * (32 + 8 + 16)),
        ("aten::addmm", call([2], [8, 4], [4, 2]), 2 * 8 * 2 * 4, 4 * (32 + 8 + 16)),
        ("aten::bmm", call([3, 8, 4], [3, 4, 2]), 3 * 2 * 8 * 2 * 4, 3 * 4 * (32 + 8 + 16)),
        ("aten::linear", call([5, 8, 4], [2, 4]), 5 * 2 * 8 * 2 * 4, 4 * (160 + 8 + 80)),
        ("aten::_scaled_mm", call([8, 4], [4, 2], width=1), 2 * 8 * 2 * 4, 32 + 8 + 16),
        # 8 rows, each for one of 3 experts.
        ("aten::_grouped_mm", call([8, 4], [3, 4, 2]), 2 * 8 * 2 * 4, 4 * (32 + 24 + 16)),
        ("aten::mv", call([8, 4], [4]), 2 * 8 * 4, 4 * 32),
        # 16 filters of 3 x 3 over 8 channels give 16 x 5 x 5 with stride 2, padding 1 on 10 x 10.
        (
            "aten::convolution",
            call(
                [1, 8, 10, 10],
                [16, 8, 3, 3],
                None,
                values=("", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"),
            ),
            2 * 16 * 25 * 72,
            4 * (800 + 1152 + 400),
        ),
        (
            "aten::convolution_backward",
            call([1, 16, 5, 5], [1, 8, 10, 10], [16, 8, 3, 3], values=("", "[False, True, False]")),
            2 * 16 * 25 * 72,
            4 * (400 + 800 + 1152),
        ),
        # Transposed, the filters lie around each of the 25 places of the 16 channels that go in.
        (
            "aten::convolution_backward",
            call(
                [1, 8, 10, 10],
                [1, 16, 5, 5],
                [16, 8, 3, 3],
                values=(*[""] * 7, "True", "[0, 0]", "1", "[True, True, False]"),
            ),
            2 * 2 * 16 * 25 * 72,
            4 * (800 + 2 * (400 + 1152)),
        ),
        (
            "aten::cudnn_convolution_backward_input",
            call(None, [1, 16, 5, 5], [16, 8, 3, 3]),
            2 * 16 * 25 * 72,
            4 * (2 * 400 + 1152),
        ),
        (
            "aten::_scaled_dot_product_flash_attention",
            call(HEADS, HEADS, HEADS, width=2),
            FORWARD,
            2 * 4 * 256,
        ),
        (
            "aten::_scaled_dot_product_flash_attention",
            call(HEADS, HEADS, HEADS, values=("", "", "", "0.", "True")),
            FORWARD / 2,
            4 * 4 * 256,
        ),
        # Here the fifth argument keeps the sums for backward, and the seventh tells of a mask.
        (
            "aten::_scaled_dot_product_efficient_attention",
            call(HEADS, HEADS, HEADS, values=("", "", "", "", "True", "0.", "False")),
            FORWARD,
            4 * 4 * 256,
        ),
        (
            "aten::_scaled_dot_product_efficient_attention",
            call(HEADS, HEADS, HEADS, values=("", "", "", "", "True", "0.", "True")),
            FORWARD / 2,
            4 * 4 * 256,
        ),
        # Values of half the size: the second product is half as large.
        (
            "aten::_scaled_dot_product_flash_attention",
            call(HEADS, HEADS, [1, 2, 16, 4]),
            FORWARD * 0.75,
            4 * (256 + 256 + 128 + 128),
        ),
        (
            "aten::_scaled_dot_product_flash_attention_backward",
            call(HEADS, HEADS, HEADS, HEADS),
            2.5 * FORWARD,
            2 * 4 * 4 * 256,
        ),
        # The library's own operators: batch, sequence, heads, size.
        (
            "flash_attn::_flash_attn_forward",
            call([1, 16, 2, 8], [1, 16, 2, 8], [1, 16, 2, 8]),
            FORWARD,
            4 * 4 * 256,
        ),
        ("aten::add_", call([100], [100]), 100, 4 * 300),
        ("aten::copy_", call([100], [100], None), 200, 4 * 200),
        ("aten::fill_", call([100], None), 100, 4 * 100),
        ("aten::clamp_min", call([100], None), 100, 4 * 200),
        ("aten::clamp_min", call([100], None, [100]), 100, 4 * 200),  # into a tensor that is there
        ("aten::mul", call([100], [100], [100]), 100, 4 * 300),
        ("aten::sum", call([100]), 100, 400),
        ("aten::embedding", call([1000, 8], [3]), 0, 2 * 3 * 8 * 4 + 3 * 4),
        # What inductor generates is given its output too.
        ("triton_poi_fused_add_0", call([100], [100], [100], None), 300, 4 * 300),
    ],
)
def test_work_by_shapes(name: str, given: OperatorCall, flops: float, moved: float) -> None:
    assert work_of(name, given) == (flops, moved)


RECURRENT = 2 * 5 * 2 * (24 * 4 + 24 * 6)  # 5 elements of 2 sequences; 4 inputs, 6 units, 4 gates


INPUT, PACKED = tensors(5, 2, 4), tensors(10, 4)
MATRICES = tensors(24, 4), tensors(24, 6)


@pytest.mark.parametrize(
    ("name", "given", "flops"),
    [
        # oneDNN: one layer, whose matrices are two arguments.
        ("aten::mkldnn_rnn_layer", (INPUT, *MATRICES, tensors(24)), RECURRENT),
        ("aten::mkldnn_rnn_layer_backward", (INPUT, *MATRICES), 2 * RECURRENT),
        # cuDNN: all layers, whose weights are a list.
        ("aten::_cudnn_rnn", (INPUT, sum(MATRICES, ()) + tensors(24)), RECURRENT),
        ("aten::_cudnn_rnn", (PACKED, sum(MATRICES, ())), RECURRENT),
        ("aten::miopen_rnn_backward", (INPUT, sum(MATRICES, ())), 2 * RECURRENT),
    ],
)
def test_recurrent_layers_are_products(name: str, given: tuple[Any, ...], flops: float) -> None:
    found = work_of(name, OperatorCall(given, ()))
    assert found is not None
    assert found.flops == flops
    assert multiplies(name)


def test_a_transposed_convolution_has_operations_but_no_bytes() -> None:
    strides = ("", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "True", "[0, 0]", "1")
    found = work_of("aten::convolution", call([1, 16, 5, 5], [16, 8, 3, 3], None, values=strides))
    assert found is not None
    assert found.flops == 2 * 16 * 25 * 72
    assert math.isnan(found.bytes)


def test_work_recorded_by_inductor_takes_precedence() -> None:
    told = read_call({"kernel_flop": 128, "kernel_num_gb": 2e-6, "kernel_backend": "triton"})
    assert work_of("triton_tem_fused_mm_1", told) == (128, 2000)
    nothing = read_call({"kernel_flop": 0, "Input Dims": [[8, 4], [4, 2]], "Input type": []})
    assert work_of("triton_tem_fused_mm_1", nothing) is None


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("aten::mm", call()),
        ("aten::view", call([8, 4])),
        ("aten::convolution", call([1, 8, 10, 10], [16, 8, 3, 3])),
        ("my::operator", call([8, 4])),
    ],
)
def test_unknown_work(name: str, given: OperatorCall) -> None:
    assert work_of(name, given) is None


def test_arguments_are_read_as_recorded() -> None:
    given = read_call(
        {
            "Input Dims": [[8, 4], [], [[2, 3], [5]], []],
            "Input type": ["c10::BFloat16", "Scalar", "TensorList", "float"],
            "Concrete Inputs": ["", "[1, 2]", "", "x"],
        }
    )
    assert given.inputs[0] == (Tensor((8, 4), 2),)
    assert given.inputs[1] == ()
    assert [tensor.elements for tensor in given.inputs[2]] == [6, 5]
    assert given.inputs[3] == (Tensor((), 4),)
    assert given.numbers(1) == [1, 2]
    assert given.numbers(3) is None
    assert read_call({}) == OperatorCall((), ())


def test_products_are_distinguished_from_memory_bound_operators() -> None:
    names = ("aten::mm", "aten::convolution_backward", "aten::add_", "aten::view", "my::operator")
    assert [multiplies(name) for name in names] == [True, True, False, False, False]


ODD_SHAPES = [None, True, 0, 1e308, "", [], {}, [[]], [10**18] * 50, [0, 0], [-1] * 4, [2, 3], ["a"]]
ODD_LISTS = ["", "[]", "[0, 0]", "[null]", "[1e999]", "[-1]", "[2,2]", "True", "[" * 3000, '["a"]', None, 5]
ODD_LISTS += [f"[{'9' * 30}]", "9" * 5000]
ODD_NUMBERS = [None, True, -1, 1e308, float("nan"), float("inf"), 2**63, 10**400, "1", []]
NAMES = ["mm", "addmm", "linear", "mv", "conv2d", "convolution_backward", "mkldnn_rnn_layer", "embedding"]
NAMES += ["_scaled_dot_product_flash_attention", "sum", "cat", "copy_", "cudnn_convolution_backward"]


def test_arguments_that_no_operator_has_are_no_error() -> None:
    for seed in range(3000):
        chance = random.Random(seed)
        arguments = {
            "Input Dims": chance.choice([chance.choices(ODD_SHAPES, k=4), [[1, 2, 3, 4]] * 3, 5]),
            "Input type": chance.choices(["float", "TensorList", "", 5], [9, 1, 1, 1], k=5),
            "Concrete Inputs": chance.choices(ODD_LISTS, k=9),
            "kernel_flop": chance.choice(ODD_NUMBERS),
            "kernel_num_gb": chance.choice(ODD_NUMBERS),
        }
        work = work_of(f"aten::{chance.choice(NAMES)}", read_call(arguments))
        assert work is None or not any(math.isinf(number) for number in map(float, work)), seed
