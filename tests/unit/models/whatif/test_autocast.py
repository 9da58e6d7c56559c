"""Which operators autocast runs in 16 bits: small models by hand, and the lists against torch."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from stepscope.models.calibration.calibration import Operator
from stepscope.models.whatif.parts.autocast_flow import forward_effects, policy_of

CPU, CUDA = map(policy_of, ("cpu", "cuda"))
IMAGE, ROWS = (2, 4, 8, 8), (2, 3, 16)


def call(name: str, *sizes: tuple[int, ...], values: tuple[str, ...] = ()) -> Operator:
    types = ("float",) * len(sizes) + ("Scalar",) * len(values)
    empty = ((),) * len(values)
    given = ("",) * len(sizes) + values
    return Operator(name, sizes + empty, sizes + empty, types, given)


def test_the_residual_stream_of_a_transformer_stays_in_32_bits() -> None:
    tokens = call("add", ROWS, ROWS)  # embeddings of tokens and places, both in 32 bits
    effects = forward_effects(
        [
            tokens,
            call("linear", ROWS, (16, 16)),
            call("add", ROWS, ROWS),
            call("layer_norm", ROWS),
            call("linear", ROWS, (16, 16)),
            call("add", ROWS, ROWS),
        ],
        CPU,
    )
    assert [effect.half for effect in effects] == [False, True, False, False, True, False]


def test_all_of_a_convolutional_network_is_in_16_bits_once_an_image_was_cast() -> None:
    values = ("[1, 1]", "[1, 1]", "[1, 1]", "1")
    convolution = Operator(
        "conv2d",
        (IMAGE, (4, 4, 3, 3), (), (), (), (), ()),
        ((),) * 7,
        ("float", "float", "", "ScalarList", "ScalarList", "ScalarList", "Scalar"),
        ("", "", "", *values),
    )
    effects = forward_effects(
        [
            convolution,
            call("batch_norm", IMAGE, (4,), (4,)),
            call("relu_", IMAGE),
            convolution,
            call("add_", IMAGE, IMAGE),
            call("relu_", IMAGE),
        ],
        CPU,
    )
    assert [effect.half for effect in effects] == [True] * 6
    # The image and each weight are cast; what a layer made is in 16 bits already.
    assert [effect.down for effect in effects] == [(512, 144), (), (), (144,), (), ()]


class Taken(TorchFunctionMode):
    """What functions of torch take: their calls as if all were in 32 bits, and whether all is in 16."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Operator, bool]] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.__name__.strip("_").removeprefix("r" if "mul" in function.__name__ else "")
        if name in ("linear", "conv2d", "layer_norm", "relu", "tanh", "add", "mul", "pow", "mean"):
            tensors = [one for one in args if isinstance(one, torch.Tensor) and one.is_floating_point()]
            counted = [one for one in tensors if one.dim() > 1 or name in ("add", "mul")]
            half = all(one.dtype == torch.bfloat16 for one in counted)
            self.calls.append((call(name, *(tuple(one.shape) for one in tensors)), half))
        return function(*args, **(kwargs or {}))


W, D = torch.rand(16, 16), torch.rand(16)


def normed(x: Tensor) -> Tensor:
    """Root mean square norm."""
    return D * (x * (x.pow(2).mean(-1, keepdim=True)))


def of_layers(x: Tensor, layer: Callable[[Tensor], Tensor]) -> Tensor:
    for _ in range(3):
        x = layer(x)
    return x.mul(x)


K, TOKENS = torch.rand(8, 8, 3, 3), torch.rand(2, 3, 16)
RESIDUALS: dict[str, Callable[[], Tensor]] = {
    "norm first": lambda: of_layers(
        F.relu(TOKENS), lambda x: x + F.linear(F.relu(F.linear(F.layer_norm(x, (16,), D, D), W)), W)
    ),
    "norm last": lambda: of_layers(F.relu(TOKENS), lambda x: F.layer_norm(x + F.linear(x, W), (16,), D, D)),
    "root mean square": lambda: of_layers(F.relu(TOKENS), lambda x: x + F.linear(normed(x), W)),
    "scaled": lambda: of_layers(F.relu(TOKENS), lambda x: x + D * F.linear(x, W)),
    "of data": lambda: of_layers(TOKENS, lambda x: x + F.linear(F.relu(x), W)),
    "after a layer": lambda: of_layers(
        F.linear(torch.rand(2, 3, 16), W), lambda x: x + F.linear(F.relu(x), W)
    ),
    "convolutions": lambda: of_layers(
        F.conv2d(torch.rand(2, 3, 8, 8), torch.rand(8, 3, 3, 3), padding=1),
        lambda x: F.relu(x + F.conv2d(F.relu(x), K, padding=1)),
    ),
    "two branches": lambda: of_layers(F.relu(TOKENS), lambda x: F.tanh(F.linear(x, W) + F.linear(x, W))),
}


@pytest.mark.parametrize("name", RESIDUALS)
def test_a_residual_stream_has_the_precision_that_torch_gives_it(name: str) -> None:
    with torch.autocast("cpu", torch.bfloat16), Taken() as taken:
        RESIDUALS[name]()
    effects = forward_effects([one for one, _ in taken.calls], CPU)
    found = [(one.name, effect.half) for (one, _), effect in zip(taken.calls, effects, strict=True)]
    lowered = CPU.lowered
    assert found == [(one.name, half or one.name in lowered) for one, half in taken.calls]


def test_a_loss_is_computed_in_32_bits_after_a_cast() -> None:
    linear, loss = forward_effects(
        [call("linear", (8, 16), (10, 16)), call("cross_entropy_loss", (8, 10))], CPU
    )
    assert linear.half
    assert (loss.half, loss.up) == (False, (80,))


X, IMAGES, LABELS = torch.rand(4, 6), torch.rand(2, 3, 8, 8), torch.tensor([0, 1, 2, 3])
SINGLE: dict[str, Callable[[], torch.Tensor]] = {
    "linear": lambda: F.linear(X, torch.rand(5, 6)),
    "mm": lambda: torch.mm(X, torch.rand(6, 2)),
    "addmm": lambda: torch.addmm(torch.rand(2), X, torch.rand(6, 2)),
    "bmm": lambda: torch.bmm(torch.rand(2, 3, 4), torch.rand(2, 4, 5)),
    "baddbmm": lambda: torch.baddbmm(torch.rand(2, 3, 5), torch.rand(2, 3, 4), torch.rand(2, 4, 5)),
    "matmul": lambda: torch.matmul(torch.rand(2, 3, 4), torch.rand(4, 5)),
    "conv1d": lambda: F.conv1d(torch.rand(2, 3, 8), torch.rand(4, 3, 3)),
    "conv2d": lambda: F.conv2d(IMAGES, torch.rand(5, 3, 3, 3)),
    "conv_transpose2d": lambda: F.conv_transpose2d(IMAGES, torch.rand(3, 4, 2, 2)),
    "scaled_dot_product_attention": lambda: F.scaled_dot_product_attention(*[torch.rand(2, 2, 4, 8)] * 3),
    "prelu": lambda: F.prelu(X, torch.rand(1)),
    "mv": lambda: torch.mv(X, torch.rand(6)),
    "rnn_tanh": lambda: torch.nn.RNN(6, 5)(X)[0],
    "rnn_relu_cell": lambda: torch.nn.RNNCell(6, 5, nonlinearity="relu")(X),
    "gru": lambda: torch.nn.GRU(6, 5)(X)[0],
    "gru_cell": lambda: torch.gru_cell(*CELL),
}
CELL = (X, torch.rand(4, 5), torch.rand(15, 6), torch.rand(15, 5))
HALF = X.bfloat16()
HALVES: dict[str, Callable[[], torch.Tensor]] = {
    "cross_entropy_loss": lambda: F.cross_entropy(HALF, LABELS),
    "mse_loss": lambda: F.mse_loss(HALF, HALF),
    "l1_loss": lambda: F.l1_loss(HALF, HALF),
    "smooth_l1_loss": lambda: F.smooth_l1_loss(HALF, HALF),
    "huber_loss": lambda: F.huber_loss(HALF, HALF),
    "binary_cross_entropy": lambda: F.binary_cross_entropy(HALF, HALF),
    "binary_cross_entropy_with_logits": lambda: F.binary_cross_entropy_with_logits(HALF, HALF),
    "prod": lambda: HALF.prod(),
    "cdist": lambda: torch.cdist(HALF, HALF),
    "softmax": lambda: F.softmax(HALF, -1),
    "layer_norm": lambda: F.layer_norm(HALF, (6,), torch.ones(6), torch.zeros(6)),
    "rms_norm": lambda: F.rms_norm(HALF, (6,)),
    "gelu": lambda: F.gelu(HALF),
    "sum": lambda: HALF.sum(),
    "max_pool2d": lambda: F.max_pool2d(IMAGES.bfloat16(), 2),
}


@pytest.mark.parametrize("name", SINGLE)
def test_what_the_list_says_becomes_16_bits_does_so_in_torch(name: str) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        dtype = SINGLE[name]().dtype
    assert (dtype == torch.bfloat16) == (name in CPU.lowered)


@pytest.mark.parametrize("name", HALVES)
def test_what_the_list_says_becomes_32_bits_does_so_in_torch(name: str) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        dtype = HALVES[name]().dtype
    assert (dtype == torch.float32) == (name in CPU.kept)


def test_the_lists_of_gpus_have_every_operator_of_torchs_own() -> None:
    header = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
    macros = re.findall(r"#define AT_FORALL_(\w+)\(_\)((?:.*\\\n)+.*)", header.read_text("utf-8"))
    listed = {name: set(re.findall(r"_\((\w+)", body)) for name, body in macros}
    assert listed["LOWER_PRECISION_FP"] <= CUDA.lowered
    assert listed["FP32"] | listed["FP32_SET_OPT_DTYPE"] <= CUDA.kept


def test_a_recurrent_layer_with_a_state_in_32_bits_computes_products_in_16() -> None:
    tokens = call("linear", (4, 6), (6, 6))
    after = [call("gru", (4, 6), (4, 6)), call("mul", (4, 6), (4, 6)), call("linear", (4, 6), (3, 6))]
    effects = forward_effects([tokens, *after], CPU)
    assert [effect.half for effect in effects] == [True, True, False, True]
    assert [effect.down for effect in effects[1:]] == [(), (), (24, 18)]
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.profiler.profile() as profile:
        torch.gru_cell(*CELL)
    assert [event.name for event in profile.events()].count("aten::_to_copy") >= len(CELL)
