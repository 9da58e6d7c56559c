"""What binds a kernel, and its time on another device, on paper."""

from __future__ import annotations

import json
from importlib.resources import files

import numpy as np
import pytest
from drawn_steps import V100, changed, graph_of

from stepscope.facts.roofline.rates import rates_of
from stepscope.graph import select
from stepscope.models.kernels import find_gpu, product_ns
from stepscope.models.whatif.parts.kernel_times import (
    bound_by_memory,
    memory_rate,
    scaled_kernels_ns,
    work_of_tasks,
)

# A V100 has 15.7 TFLOPS and 900 GB/s: from 17.4 operations a byte on compute binds.
STEP = """
    main     |   0 40 | ProfilerStep#0
    main     |  10 20 | aten::mm           | Input_Dims=[{a},{b}] Input_type=["float","float"]
    main     |  12 14 | cudaLaunchKernel   | corr=7
    main     |  22 28 | aten::mul          | Input_Dims=[[1000],[1000]] Input_type=["float","float"]
    main     |  22 24 | cudaLaunchKernel   | corr=8
    stream 7 |  20 60 | volta_sgemm_128x64 | corr=7
    stream 7 |  60 70 | elementwise_mul    | corr=8
"""
SQUARE = STEP.format(a="[512,512]", b="[512,512]")  # 512 / 6 = 85 operations a byte
FLAT = STEP.format(a="[1,512]", b="[512,512]")  # half an operation a byte


def test_a_product_is_bound_by_what_its_shape_says() -> None:
    for text, names in ((SQUARE, ["elementwise_mul"]), (FLAT, ["volta_*", "elementwise_mul"])):
        graph = graph_of(text, devices=V100)
        expected = np.any([select(graph, name=name) for name in names], axis=0)
        assert bound_by_memory(graph).tolist() == expected.tolist()


def test_without_shapes_or_rates_the_kind_says_it() -> None:
    for graph in (graph_of(FLAT), graph_of(FLAT.replace("Input_Dims", "x"), devices=V100)):
        assert bound_by_memory(graph).tolist() == select(graph, name="elementwise*").tolist()


def test_work_belongs_to_the_kernels_of_its_operator() -> None:
    flops, size, _ = work_of_tasks(graph_of(SQUARE, devices=V100))
    assert np.nansum(flops) == 2 * 512**3 + 1000
    assert np.nansum(size) == 4 * (3 * 512 * 512 + 3000)
    assert (~np.isnan(size)).sum() == 2


def test_the_kernel_that_multiplies_does_the_operations() -> None:
    split = SQUARE.replace("20 60 | volta", "20 50 | volta")
    split += "stream 7 | 50 60 | transpose_readWrite | corr=7"
    graph = graph_of(split, devices=V100)
    flops, size, _ = work_of_tasks(graph)
    names = list(graph.tasks.text("name"))
    gemm, other = names.index("volta_sgemm_128x64"), names.index("transpose_readWrite")
    assert (flops[gemm], flops[other]) == (2 * 512**3, 0)
    assert size[gemm] == 3 * size[other]


def test_memory_is_as_fast_as_the_steps_own_elementwise_work() -> None:
    # 12,000 bytes in 10 us.
    assert memory_rate(graph_of(SQUARE)) == 1.2
    assert memory_rate(graph_of(SQUARE.replace("aten::mul", "aten::view"))) is None


def test_a_task_that_was_disturbed_does_not_tell_how_fast_memory_is() -> None:
    lines = (
        f'main | {at} {at + length} | aten::mul | Input_Dims=[[1000]] Input_type=["float"]'
        for at, length in ((0, 10), (10, 10), (20, 900))
    )
    graph = graph_of("main | 0 1000 | ProfilerStep#0\n" + "\n".join(lines))
    assert memory_rate(graph) == 0.8  # 8,000 bytes in 10 us


def kernels_us(text: str, old: str, new: str) -> list[float]:
    devices = ({"id": 0, "name": f"NVIDIA {old}"},)
    before, after = rates_of(old), rates_of(new)
    assert before is not None
    assert after is not None
    graph = graph_of(text, devices=devices)
    return (scaled_kernels_ns(graph, before, after)[graph.on_device] / 1e3).tolist()


def test_another_device_by_both_rooflines() -> None:
    # FP32 19.5 against 15.7 TFLOPS, memory 1555 against 900 GB/s; the flat product is bound by it.
    # 5 us of each kernel stay.
    expected = 5 + 35 * 15.7 / 19.5, 5 + 5 * 900 / 1555
    assert kernels_us(SQUARE, "V100", "A100") == pytest.approx(expected, abs=0.01)
    expected = 5 + 35 * 900 / 1555, 5 + 5 * 900 / 1555
    assert kernels_us(FLAT, "V100", "A100") == pytest.approx(expected, abs=0.01)


def test_a_device_without_tf32_computes_in_fp32() -> None:
    text = SQUARE.replace("volta_sgemm_128x64", "sm80_xmma_gemm_tf32f32")
    # TF32 156 against FP32 15.7 TFLOPS: by the roofline the product was bound by its bytes.
    before = max(2 * 512**3 / 156e12, 4 * 3 * 512 * 512 / 1555e9)
    expected = 5 + 35 * (2 * 512**3 / 15.7e12) / before, 5 + 5 * 1555 / 900
    assert kernels_us(text, "A100", "V100") == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(
    ("kernel", "old", "new", "precisions"),
    [
        ("volta_sgemm_128x64", "V100", "A100", ("fp32", "fp32")),
        ("sm80_xmma_gemm_tf32f32", "A100", "V100", ("tf32", "fp32")),
    ],
)
def test_products_of_known_sizes_change_as_products_of_these_sizes_do(
    kernel: str, old: str, new: str, precisions: tuple[str, str]
) -> None:
    graph = graph_of(SQUARE.replace("volta_sgemm_128x64", kernel), devices=({"id": 0, "name": old},))
    times = []
    for name, precision in zip((old, new), precisions, strict=True):
        gpu = find_gpu({"name": name})
        assert gpu is not None
        times.append(float(product_ns(512, 512, 512, precision, gpu)))
    after = changed(graph, f"faster_gpu:to={new}")
    product = float(after.tasks["duration_ns"][after.on_device][0]) / 1e3
    assert product == pytest.approx(40 * times[1] / times[0], rel=1e-3)


@pytest.mark.parametrize(
    ("operator", "precision", "request_", "expected"),
    [
        ("aten::mm", "highest", "", "fp32"),
        ("aten::mm", None, "", "fp32"),
        ("aten::mm", None, ",tf32=yes", "tf32"),
        ("aten::mm", "high", "", "tf32"),
        ("aten::mm", "medium", "", "tf32"),
        ("aten::mm", "high", ",estimate=low", "fp32"),
        ("aten::mm", "highest", ",estimate=high", "tf32"),
        ("aten::_cudnn_rnn", "highest", "", "tf32"),
        ("aten::cudnn_convolution", "highest", "", "tf32"),
        ("aten::cudnn_convolution", "highest", ",estimate=low", "fp32"),
    ],
)
def test_only_what_the_libraries_compute_in_tf32_does_where_the_new_device_offers_it(
    operator: str, precision: str | None, request_: str, expected: str
) -> None:
    side = {",estimate=low": 1.6, ",estimate=high": 1 / 1.6}.get(request_, 1.0)
    old, new = (find_gpu({"name": name}) for name in ("V100", "A100"))
    assert old is not None
    assert new is not None
    sizes = 1024, 1024, 1024
    time = round(float(product_ns(*sizes, "fp32", old)) / 1e3)
    text = STEP.format(a="[9]", b="[9]").replace("20 60", f"20 {20 + time}").replace("60 70", "900 910")
    text = text.replace("aten::mm", operator).replace(' Input_type=["float","float"]', "", 1)
    graph = graph_of(text, devices=V100, capture={"matmul_precision": precision})
    after = changed(graph, f"faster_gpu:to=A100{request_}")
    ratio = after.tasks["duration_ns"][after.on_device][0] / graph.tasks["duration_ns"][graph.on_device][0]
    as_square = float(product_ns(*sizes, "tf32", new) / product_ns(*sizes, "fp32", old))
    as_square *= 2.1 if "convolution" in operator else 1  # than products of their sizes take
    by_peaks = (5 + (time - 5) * 15.7 / 19.5) / time
    assert ratio == pytest.approx(side * (as_square if expected == "tf32" else by_peaks), rel=0.03)


def test_every_figure_of_the_data_has_a_source() -> None:
    folder = files("stepscope.models.whatif") / "data"
    amp = json.loads((folder / "amp.json").read_text("utf-8"))
    for generation in amp["generations"]:
        for bound in ("compute", "tensor", "memory"):
            assert generation[bound]["sources"]
            assert set(generation[bound]["sources"]) <= set(amp["sources"])
