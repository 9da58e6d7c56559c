"""A step on a GPU under autocast and in TF32: products by size, casts, and what stays."""

from __future__ import annotations

import re
from typing import Any

import pytest
from drawn_steps import changed, device_names, graph_of, step_us

from stepscope.errors import ChangeError
from stepscope.facts.annotate import annotate
from stepscope.graph import Graph, build_graph, build_ranks
from stepscope.models.kernels import HALF, TF32, find_gpu, product_ns
from stepscope.testing import drawn_trace
from stepscope.trace.concat import concat, of_rank

H200 = ({"id": 0, "name": "NVIDIA H200", "computeMajor": 9},)
GPU = find_gpu(H200[0])
assert GPU is not None

# linear -> layer_norm -> loss, then the linear's two gradients; the optimizer stays.
STEP = """
    main     |     0  330 | ProfilerStep#0
    main     |     5   25 | aten::linear          | {linear}
    main     |    10   15 | cudaLaunchKernel      | corr=1
    main     |    30   50 | aten::layer_norm      | {norm}
    main     |    35   40 | cudaLaunchKernel      | corr=2
    main     |    60   80 | aten::mse_loss        | {norm}
    main     |    65   70 | cudaLaunchKernel      | corr=3
    main     |   300  310 | Optimizer.step#SGD.step
    main     |   302  306 | cudaLaunchKernel      | corr=9
    stream 7 |    20 1020 | sgemm_128x64          | corr=1
    stream 7 |  1020 1060 | layer_norm_kernel     | corr=2
    stream 7 |  1060 1090 | mse_kernel            | corr=3
    stream 7 |  1100 1300 | multi_tensor_apply    | corr=9
"""
NORM = 'Input_Dims=[[4096,4096]] Input_type=["float"] Input_Strides=[[4096,1]] Concrete_Inputs=[""]'
LINEAR = (
    'Input_Dims=[[4096,4096],[4096,4096]] Input_type=["float","float"] '
    'Input_Strides=[[4096,1],[4096,1]] Concrete_Inputs=["",""]'
)
PRODUCT_US = {name: float(product_ns(4096, 4096, 4096, name, GPU)) / 1e3 for name in (HALF, TF32)}


def step(text: str = STEP, devices: Any = H200) -> Graph:
    return graph_of(text.format(linear=LINEAR, norm=NORM), devices=devices)


def kernel_us(graph: Graph, *texts: str) -> dict[str | None, float]:
    after = changed(graph, *texts)
    times = (after.tasks["duration_ns"][after.on_device] / 1e3).tolist()
    return dict(zip(device_names(after), times, strict=True))


def test_a_product_takes_what_its_size_takes_and_casts_come_first() -> None:
    graph = step()
    times = kernel_us(graph, "amp")
    casts = 2 * 6 * 4096**2 / (4800 * 0.802) / 1e3 + 2 * 1.0  # input and weight, 6 bytes an element
    assert times["sgemm_128x64"] == pytest.approx(PRODUCT_US[HALF] + casts, rel=0.01)
    up = 6 * 4096**2 / (4800 * 0.802) / 1e3 + 1.0
    assert times["layer_norm_kernel"] == pytest.approx(40 + up, rel=0.01)  # kept in FP32
    assert times["mse_kernel"] == pytest.approx(30, rel=0.01)  # its input is in FP32 already
    assert times["multi_tensor_apply"] == 200


def test_tf32_changes_products_alone() -> None:
    before, after = kernel_us(step()), kernel_us(step(), "tf32")
    assert after["sgemm_128x64"] == pytest.approx(PRODUCT_US[TF32], rel=0.01)
    rest = [name for name in before if name != "sgemm_128x64"]
    assert [before[name] for name in rest] == [after[name] for name in rest]


def test_casts_cost_the_cpu_calls() -> None:
    """In a step that the CPU limits, AMP makes it slower."""
    text = STEP.replace("stream 7 |    20 1020", "stream 7 |    20   30")
    text = text.replace("stream 7 |  1020 1060", "stream 7 |    40   42")
    text = text.replace("stream 7 |  1060 1090", "stream 7 |    70   72")
    text = text.replace("stream 7 |  1100 1300", "stream 7 |   306  308")
    text += "    main | 90 110 | aten::relu | {norm}\n    main | 95 100 | cudaLaunchKernel | corr=4\n"
    text += "    stream 7 | 100 110 | at::native::relu_kernel | corr=4\n"
    graph = step(text)
    assert step_us(graph, "amp") > step_us(graph) + 3 * 15  # three casts, each a call like relu's


def test_the_range_holds_products_that_are_slower_or_faster() -> None:
    low, typical, high = (step_us(step(), f"amp:estimate={name}") for name in ("low", "typical", "high"))
    assert high < typical < low


def test_float16_is_asked_for_by_name() -> None:
    assert step_us(step(), "amp:dtype=float16") == step_us(step(), "amp")  # no batch norm
    with pytest.raises(ChangeError, match="expected dtype=bfloat16 or float16; found 'int8'"):
        step_us(step(), "amp:dtype=int8")


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (step(devices=({"id": 0, "name": "AMD Instinct MI300X"},)), "a known NVIDIA GPU"),
        (step(devices=({"id": 0, "name": "Tesla V100-SXM2-16GB", "computeMajor": 7},)), "V100 has no TF32"),
        (step(STEP.replace("sgemm", "tf32_s1688gemm")), "no matrix product or convolution runs in FP32"),
    ],
)
def test_tf32_is_refused_with_the_reason(graph: Graph, message: str) -> None:
    with pytest.raises(ChangeError, match=message):
        step_us(graph, "tf32")


def in_half(kernel: str, kind: str) -> Graph:
    """A linear layer with an FP32 input, which autocast or the script computes in 16 bits."""
    called = LINEAR.replace('"float"', f'"{kind}"')
    residual = LINEAR.replace('"float"]', '"c10::BFloat16"]')  # FP32 and what the layer made
    lines = f"    main | 8 20 | aten::linear | {called}\n    main | 26 28 | aten::add | {residual}\n"
    lines += STEP.replace("sgemm", kernel)
    return step(lines if kind == "float" else lines.replace("{linear}", called))


@pytest.mark.parametrize(
    ("kernel", "kind"), [("bf16_s16816gemm", "float"), ("nvjet_tst", "float"), ("gemm_7f3a", "c10::BFloat16")]
)
def test_what_was_recorded_in_16_bits_is_left_alone(kernel: str, kind: str) -> None:
    with pytest.raises(ChangeError, match="amp: no matrix product or convolution runs in 32 bits"):
        changed(in_half(kernel, kind), "amp")


@pytest.mark.parametrize("rank", [None, 0, 1])
def test_ranks_are_autocast_each_by_itself(rank: int | None) -> None:
    """Their operators alternate in time, and have the same sizes."""
    lines = STEP.format(linear=LINEAR, norm=NORM)
    later = re.sub(
        r"\|\s+(\d+)\s+(\d+) \|", lambda found: f"| {int(found[1]) + 1} {int(found[2]) + 1} |", lines
    )
    traces = [annotate(drawn_trace(text, devices=H200)) for text in (lines, later)]
    both = concat([of_rank(trace, number) for number, trace in enumerate(traces)])
    graph = build_ranks(both) if rank is None else build_graph(both, rank)
    alone, together = (changed(one, "amp") for one in (step(), graph))
    times = [one.tasks["duration_ns"][one.on_device].tolist() for one in (alone, together)]
    assert times[1] == times[0] * len(graph.ranks)


def test_without_shapes_amp_takes_published_speedups() -> None:
    graph = step(STEP.replace("{linear}", "Ev_Idx=1").replace("{norm}", "Ev_Idx=2"))
    assert kernel_us(graph, "amp")["sgemm_128x64"] == pytest.approx(1000 / 3, rel=0.01)
