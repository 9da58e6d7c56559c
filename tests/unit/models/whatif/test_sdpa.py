"""Attention written as product, softmax and product, as one kernel."""

from __future__ import annotations

import pytest
from test_gpu_layouts import GPU, call, kernel_us, step

from stepscope.errors import ChangeError
from stepscope.graph import Graph
from stepscope.models.kernels import HALF, SINGLE
from stepscope.models.kernels.operators import attention_ns

HEADS, LENGTH, HEAD = 96, 512, 64
Q, K, S = [HEADS, LENGTH, HEAD], [HEADS, HEAD, LENGTH], [HEADS, LENGTH, LENGTH]
FLOPS = 4.0 * HEADS * LENGTH * LENGTH * HEAD
ELEMENTS = 4 * HEADS * LENGTH * HEAD


def written_out(
    head: int = HEAD, rows: int = LENGTH, between: tuple[str, ...] = ("softmax", "dropout")
) -> Graph:
    names = {"softmax": "softmax_warp_forward", "dropout": "fused_dropout", "mm": "sgemm_mm"}
    query, key, scores = [HEADS, LENGTH, head], [HEADS, head, LENGTH], [HEADS, LENGTH, LENGTH]
    return step(
        ("bmm", call([query, key]), [("sgemm_scores", 300)]),
        ("mul", call([scores]), [("mul_kernel", 60)]),
        *((name, call([scores]), [(names[name], 80)]) for name in between),
        ("bmm", call([[HEADS, rows, LENGTH], [HEADS, LENGTH, head]]), [("sgemm_values", 310)]),
        ("relu", call([query]), [("relu_kernel", 7)]),
    )


def fused_us(precision: str, width: int) -> float:
    assert GPU is not None
    return attention_ns(FLOPS, width * ELEMENTS, precision, GPU) / 1e3


def test_one_kernel_takes_the_time_of_its_operations_and_bytes() -> None:
    expected = pytest.approx(fused_us(SINGLE, 4), rel=0.01)
    assert kernel_us(written_out(), "sdpa") == {"sgemm_scores": expected, "relu_kernel": 7}


@pytest.mark.parametrize("order", [("amp", "sdpa"), ("sdpa", "amp")])
def test_with_amp_it_computes_in_16_bits(order: tuple[str, str]) -> None:
    casts = 2 * 6 * HEADS * LENGTH * HEAD / (4800 * 0.802) / 1e3 + 2
    after = kernel_us(written_out(), *order)["sgemm_scores"]
    assert fused_us(HALF, 2) * 0.99 <= after <= (fused_us(HALF, 2) + casts) * 1.1


@pytest.mark.parametrize(
    "graph",
    [
        written_out(head=512),  # no fused kernel has such heads
        written_out(rows=256),  # not the scores
        written_out(between=("dropout",)),
        written_out(between=("softmax", "mm")),
    ],
)
def test_other_products_stay(graph: Graph) -> None:
    with pytest.raises(ChangeError, match="no softmax lies between two batched products"):
        kernel_us(graph, "sdpa")
