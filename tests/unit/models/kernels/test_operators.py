"""The sizes of the products that an operator computes, from its recorded arguments."""

from __future__ import annotations

import pytest

from stepscope.models.calibration.calibration import Operator
from stepscope.models.kernels import HALF, SINGLE, find_gpu
from stepscope.models.kernels.operators import Convolution, products_ns, products_of


def call(
    name: str, *sizes: tuple[int, ...], values: tuple[str, ...] = (), strides: object = None
) -> Operator:
    """A call with FP32 tensors in front of other arguments."""
    empty = ((),) * len(values)
    rows = tuple(strides) if isinstance(strides, tuple) else tuple(map(contiguous, sizes))
    types = ("float",) * len(sizes) + ("Scalar",) * len(values)
    return Operator(name, sizes + empty, rows + empty, types, ("",) * len(sizes) + values)


def contiguous(size: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for length in reversed(size):
        strides.append(step)
        step *= length
    return tuple(reversed(strides))


def sizes(operator: Operator, forward: Operator | None = None) -> list[tuple[int, ...]]:
    return [
        (one.rows, one.columns, one.inner, one.batch, one.times) for one in products_of(operator, forward)
    ]


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        (call("linear", (8, 512, 768), (3072, 768), (3072,)), (4096, 3072, 768, 1, 1)),
        (call("addmm", (768,), (4096, 3072), (3072, 768)), (4096, 768, 3072, 1, 1)),
        (call("mm", (768, 4096), (4096, 2304)), (768, 2304, 4096, 1, 1)),
        (call("bmm", (96, 512, 64), (96, 64, 512)), (512, 512, 64, 96, 1)),
        (call("baddbmm", (4, 2, 5), (4, 2, 3), (4, 3, 5)), (2, 5, 3, 4, 1)),
        (call("matmul", (2, 3, 4), (4, 5)), (6, 5, 4, 1, 1)),
        (call("matmul", (3, 4), (2, 4, 5)), (3, 5, 4, 2, 1)),
    ],
)
def test_matrix_products(operator: Operator, expected: tuple[int, ...]) -> None:
    assert sizes(operator) == [expected]


CONVOLUTION = call(
    "conv2d", (16, 64, 32, 32), (128, 64, 3, 3), values=("", "[2, 2]", "[1, 1]", "[1, 1]", "1")
)


def backward(mask: str) -> Operator:
    arguments = ("[0]", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", mask)
    return call(
        "convolution_backward", (16, 128, 16, 16), (16, 64, 32, 32), (128, 64, 3, 3), values=arguments
    )


def test_a_convolution_is_the_product_of_its_unfolded_input() -> None:
    places, taps = 16 * 16 * 16, 64 * 9
    assert sizes(CONVOLUTION) == [(places, 128, taps, 1, 1)]
    assert products_of(CONVOLUTION)[0].elements == 16 * 64 * 32**2 + 128 * taps + 128 * places


def test_backward_computes_the_gradients_that_are_wanted() -> None:
    places = 16 * 16 * 16
    of_input, of_filters = (places, 64, 128 * 9, 1, 1), (128, 64 * 9, places, 1, 1)
    assert sizes(backward("[True, True, False]"), CONVOLUTION) == [of_input, of_filters]
    assert sizes(backward("[False, True, False]"), CONVOLUTION) == [of_filters]


def test_a_transposed_convolution_has_more_results_than_places() -> None:
    values = ("", "[2, 2]", "[0, 0]", "[0, 0]", "1", "[1, 1]")
    operator = call("conv_transpose2d", (16, 128, 8, 8), (128, 64, 2, 2), values=values)
    assert sizes(operator) == [(16 * 64, 64 * 4, 128, 1, 1)]
    convolution = Convolution.of(operator)
    assert convolution is not None
    assert convolution.results == 16 * 64 * 16 * 16


def test_layout_is_read_from_the_strides() -> None:
    last = call(
        "conv2d",
        (16, 64, 32, 32),
        (128, 64, 3, 3),
        values=("", "[1, 1]", "[1, 1]", "[1, 1]", "1"),
        strides=((65536, 1, 2048, 64), (576, 1, 192, 64)),
    )
    found = [Convolution.of(one) for one in (CONVOLUTION, last)]
    assert [one.channels_last for one in found if one] == [False, True]


def test_a_recurrent_layer_multiplies_all_inputs_at_once_and_its_state_one_by_one() -> None:
    weights = [[4096, 2048], [4096, 1024], [4096], [4096]]
    operator = Operator(
        "lstm",
        ((64, 48, 2048), [[1, 64, 1024], [1, 64, 1024]], weights, (), ()),
        ((98304, 2048, 1), (), (), (), ()),
        ("float", "TensorList", "TensorList", "Scalar", "Scalar"),
        ("", "", "", "True", "True"),
    )
    assert sizes(operator) == [(48 * 64, 4096, 2048, 1, 1), (64, 4096, 1024, 1, 48)]
    back = call("_cudnn_rnn_backward", (64, 48, 2048))
    assert sizes(back, operator) == [
        (48 * 64, 2048, 4096, 1, 1),
        (4096, 2048, 48 * 64, 1, 1),
        (64, 1024, 4096, 1, 48),
        (4096, 1024, 48 * 64, 1, 1),
    ]


def test_a_vocabulary_that_is_not_a_multiple_of_eight_is_slow_in_16_bits_only() -> None:
    gpu = find_gpu({"name": "NVIDIA H200"})
    assert gpu is not None
    odd, even = (call("linear", (8, 512, 768), (rows, 768)) for rows in (50257, 50304))
    for precision, ratio in ((SINGLE, 1.0), (HALF, 6.0)):
        times = [products_ns(products_of(one), precision, gpu) for one in (odd, even)]
        assert times[0] / times[1] == pytest.approx(ratio, rel=0.3)


@pytest.mark.parametrize(
    "operator",
    [
        call("relu", (4, 4)),
        call("mm", (4, 4)),
        call("conv2d", (2, 3, 8, 8), (4, 3, 3, 3)),
        call("mm", (4,), (4,)),
    ],
)
def test_nothing_is_guessed_without_sizes(operator: Operator) -> None:
    assert products_of(operator) == []
