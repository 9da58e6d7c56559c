"""torch.compile: chains between products as one kernel of the bytes that are left, and fewer calls."""

from __future__ import annotations

import pytest
from drawn_steps import changed, device_names, graph_of, step_us
from test_gpu_layouts import call, kernel_us, step

from stepscope.errors import ChangeError
from stepscope.graph import Graph
from stepscope.models.whatif import CHANGES, parse_request, predict

WIDE, FEW = [4096, 4096], [4096]
LINEAR = ("linear", call([WIDE, WIDE]), [("sgemm_128x64", 900)])
MUL = ("mul", call([WIDE, WIDE]), [("mul_kernel", 61)])
TANH = ("tanh", call([WIDE]), [("tanh_kernel", 41)])
ADD = ("add", call([WIDE, WIDE]), [("add_kernel", 61)])
NORM = ("layer_norm", call([WIDE, FEW, FEW]), [("layer_norm_kernel", 41)])
LAST = ("linear", call([WIDE, WIDE]), [("sgemm_64x64", 800)])
PRODUCTS = {"sgemm_128x64": 900, "sgemm_64x64": 800}


Called = tuple[str, str, list[tuple[str, int]]]


def fused_us(*operators: Called, estimate: str = "typical") -> dict[str | None, float]:
    times = kernel_us(step(LINEAR, *operators, LAST), f"compile:estimate={estimate}")
    return {name: us for name, us in times.items() if name not in PRODUCTS}


@pytest.mark.parametrize(
    ("chain", "us"),
    [
        ((TANH,), 41),  # nothing is saved
        ((MUL, TANH), 1 + 60 * 2 / 3 + 40 / 2),  # two values read, one written, of five passes
        ((TANH, MUL), 1 + 40 / 2 + 60 * 2 / 3),
        ((MUL, TANH, MUL), 1 + 60 * 2 / 3 + 0 + 60 * 2 / 3),
        ((TANH, ADD, NORM), 1 + 40 / 2 + 60 * 2 / 3 + 40 / 2),  # a later layer reads the sum
    ],
)
def test_a_chain_takes_the_time_of_the_bytes_that_it_still_moves(
    chain: tuple[Called, ...], us: float
) -> None:
    assert list(fused_us(*chain).values()) == [pytest.approx(us, abs=0.1)]


def test_in_the_low_estimate_backward_reads_every_value() -> None:
    low = fused_us(MUL, TANH, MUL, estimate="low")
    assert list(low.values()) == [pytest.approx(1 + 60 + 40 / 2 + 60 * 2 / 3, abs=0.1)]


def test_products_and_values_of_another_size_end_a_chain() -> None:
    small = ("mul", call([FEW, FEW]), [("small_kernel", 2)])
    between = ("linear", call([WIDE, WIDE]), [("sgemm_between", 700)])
    assert set(fused_us(MUL, between, TANH)) == {"mul_kernel", "sgemm_between", "tanh_kernel"}
    assert set(fused_us(MUL, small, TANH)) == {"mul_kernel", "small_kernel"}


def test_gradients_of_lookups_need_no_sorted_indices() -> None:
    kernels = [("fill_kernel", 30), ("radix_sort", 4), ("radix_sort_2", 4), ("embedding_backward_kernel", 90)]
    lookup = ("embedding_dense_backward", call([WIDE, FEW]), kernels)
    assert set(fused_us(MUL, TANH, lookup)) == {"mul_kernel", "fill_kernel", "embedding_backward_kernel"}


# Six operators of 20 us each on the CPU, whose kernels take 2 us.
MANY = [
    (name, call([WIDE]), [(f"{name}_kernel", 2)])
    for name in ("mul", "tanh", "exp", "relu", "gelu", "sigmoid")
]


def test_the_cpu_launches_what_is_left() -> None:
    graph = step(*MANY)
    after = changed(graph, "compile")
    assert device_names(after) == ["mul_kernel"]
    host = ~graph.on_device & graph.tasks.text("stage").mask("forward")
    assert host.any()
    assert step_us(after) < step_us(graph) / 2


def combined_us(*texts: str) -> float:
    return predict(
        step(LINEAR, MUL, TANH, LAST), [parse_request(text, CHANGES) for text in texts]
    ).predicted_step_ms


def test_combinations_do_not_depend_on_their_order() -> None:
    orders = (("amp", "compile", "cuda_graphs"), ("cuda_graphs", "compile", "amp"))
    assert combined_us(*orders[0]) == combined_us(*orders[1])
    assert combined_us("amp", "compile") < min(combined_us("amp"), combined_us("compile"))


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (graph_of("main | 0 90 | ProfilerStep#0\nmain | 5 20 | aten::mul"), "on a CPU"),
        (step(("mul", "", [("mul_kernel", 5)])), "needs the shapes of operators"),
        (step(LINEAR), "no operator is fused"),
        (step(MUL, ("triton_poi_fused", "", [("triton_poi_fused_0", 5)])), "that a compiler generated"),
    ],
)
def test_it_says_why_it_does_not_apply(graph: Graph, reason: str) -> None:
    with pytest.raises(ChangeError, match=f"compile: .*{reason}"):
        changed(graph, "compile")
