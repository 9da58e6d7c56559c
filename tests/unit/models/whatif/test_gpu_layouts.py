"""Steps on a GPU with channels last, with cuDNN's algorithms timed, and with sizes padded."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import pytest
from drawn_steps import changed, device_names, graph_of, step_us

from stepscope.errors import ChangeError
from stepscope.graph import Graph
from stepscope.models.kernels import HALF, TF32, find_gpu, product_ns
from stepscope.models.kernels.operators import transposing_ns

H200 = ({"id": 0, "name": "NVIDIA H200", "computeMajor": 9},)
GPU = find_gpu(H200[0])
assert GPU is not None
RATE = 4800 * 0.802  # bytes per ns that kernels reach
IMAGES, FILTERS = (16, 64, 128, 128), (64, 64, 3, 3)
SAME = ["", "", "", "[1,1]", "[1,1]", "[1,1]", "1"]  # stride, padding and dilation of a convolution


def call(sizes: Sequence[Sequence[int]], values: Sequence[str] = (), channels_last: bool = False) -> str:
    """The arguments of an operator on FP32 tensors."""
    values = [*values, *[""] * (len(sizes) - len(values))]
    dims = [*map(list, sizes), *[[] for _ in values[len(sizes) :]]]
    strides = [_strides(size, channels_last) for size in dims]
    types = ["float" if size else "" for size in dims]
    parts = {"Input_Dims": dims, "Input_Strides": strides, "Input_type": types, "Concrete_Inputs": values}
    texts = (f"{key}={str(value).replace(' ', '')}".replace(chr(39), chr(34)) for key, value in parts.items())
    return " ".join(texts)


def _strides(size: Sequence[int], channels_last: bool) -> list[int]:
    if channels_last and len(size) == 4:
        _, channels, height, width = size
        return [channels * height * width, 1, width * channels, channels]
    return [prod(size[place + 1 :]) for place in range(len(size))]


def step(*operators: tuple[str, str, Sequence[tuple[str, int]]], names: str = "NVIDIA H200") -> Graph:
    """A step whose forward calls operators: name, arguments, and the kernels of each with their us."""
    lines, cpu, device, number = [], 5, 20, 0
    for name, arguments, kernels in operators:
        lines.append(f"main | {cpu} {cpu + 8 * len(kernels) + 2} | aten::{name} | {arguments}")
        for kernel, us in kernels:
            number += 1
            lines.append(f"main | {cpu + 1} {cpu + 5} | cudaLaunchKernel | corr={number}")
            lines.append(f"stream 7 | {device} {device + us} | {kernel} | corr={number}")
            cpu, device = cpu + 8, device + us
        cpu += 4
    text = "\n".join([f"main | 0 {cpu + 20} | ProfilerStep#0", *lines])
    return graph_of(text, devices=({"id": 0, "name": names, "computeMajor": 9},))


def kernel_us(graph: Graph, *texts: str) -> dict[str | None, float]:
    after = changed(graph, *texts)
    times = (after.tasks["duration_ns"][after.on_device] / 1e3).tolist()
    return dict(zip(device_names(after), times, strict=True))


CONVOLUTION = ("conv2d", call([IMAGES, FILTERS], SAME), [("implicit_gemm_f32f32_f32", 900)])
NORM = ("batch_norm", call([IMAGES, [64], [64]]), [("bn_fw_tr_1C11_kernel", 500)])
RELU = ("relu", call([IMAGES]), [("at::native::relu_kernel", 35)])
NORM_US = {width: (3 * width * prod(IMAGES) / RATE + 2000) / 1e3 for width in (2, 4)}


def test_batch_norm_takes_the_time_of_its_bytes() -> None:
    times = kernel_us(step(CONVOLUTION, NORM), "channels_last")
    assert times == {
        "implicit_gemm_f32f32_f32": 900,
        "bn_fw_tr_1C11_kernel": pytest.approx(NORM_US[4], rel=0.01),
    }


def test_recorded_changes_of_layout_go() -> None:
    kernels = [("nchwToNhwcKernel", 50), ("implicit_gemm_f32f32_f32", 800), ("nhwcToNchwKernel", 70)]
    graph = step(("conv2d", call([IMAGES, FILTERS], SAME), kernels))
    assert step_us(graph) - step_us(graph, "channels_last") == pytest.approx(120, abs=1)


@pytest.mark.parametrize("order", [("amp", "channels_last"), ("channels_last", "amp")])
def test_with_amp_convolutions_lose_predicted_changes_of_layout(order: tuple[str, ...]) -> None:
    graph = step(CONVOLUTION, NORM, RELU)
    assert GPU is not None
    layouts = transposing_ns(2 * prod(IMAGES), GPU) / 1e3 + 2  # two kernels of 1 us at least
    amp, both = kernel_us(graph, "amp"), kernel_us(graph, *order)
    name = "implicit_gemm_f32f32_f32"
    assert amp[name] - both[name] == pytest.approx(layouts, rel=0.02)
    assert both["bn_fw_tr_1C11_kernel"] == pytest.approx(NORM_US[2], rel=0.05)


def test_what_has_channels_last_stays() -> None:
    graph = step(("conv2d", call([IMAGES, FILTERS], SAME, channels_last=True), [("implicit_gemm", 900)]))
    with pytest.raises(ChangeError, match="every convolution has its channels last"):
        step_us(graph, "channels_last")


@pytest.mark.parametrize("name", ["channels_last", "pad_to_aligned", "sdpa"])
def test_needs_a_known_gpu(name: str) -> None:
    with pytest.raises(ChangeError, match="needs a known NVIDIA GPU, and this is AMD Instinct MI300X"):
        step_us(step(CONVOLUTION, names="AMD Instinct MI300X"), name)


def convolution(
    channels: int, places: int, us: int, name: str = "implicit_gemm"
) -> tuple[str, str, list[tuple[str, int]]]:
    sizes = (16, channels, places, places), (channels, channels, 3, 3)
    return "conv2d", call(sizes, SAME), [(f"{name}_f32f32_f32", us)]


def test_a_convolution_takes_the_time_of_those_of_equal_work() -> None:
    """256 channels of 64 x 64 and 128 of 128 x 128: as many operations."""
    graph = step(convolution(128, 128, 1800), convolution(256, 64, 9700, "fft"), convolution(64, 128, 500))
    assert kernel_us(graph, "cudnn_benchmark") == {"implicit_gemm_f32f32_f32": 500, "fft_f32f32_f32": 1800}
    assert step_us(graph) - step_us(graph, "cudnn_benchmark") == pytest.approx(7900, abs=1)


@pytest.mark.parametrize(
    "others",
    [
        [convolution(128, 128, 4000)],  # within a factor of 2.5
        [convolution(64, 128, 500)],  # a quarter of the operations
        [],
    ],
)
def test_other_convolutions_stay(others: list[tuple[str, str, list[tuple[str, int]]]]) -> None:
    with pytest.raises(ChangeError, match="no convolution is far slower than others of equal work"):
        step_us(step(*others, convolution(256, 64, 9700)), "cudnn_benchmark")


def test_a_convolution_that_moves_more_bytes_may_take_longer() -> None:
    graph = step(convolution(256, 64, 1800), convolution(64, 256, 9700))
    with pytest.raises(ChangeError, match="no convolution is far slower than others of equal work"):
        step_us(graph, "cudnn_benchmark")


def linear(columns: int, us: int) -> tuple[str, str, list[tuple[str, int]]]:
    return "linear", call([[4096, 768], [columns, 768]]), [("sgemm_128x64", us)]


@pytest.mark.parametrize(("change", "precision"), [("amp", HALF), ("tf32", TF32)])
@pytest.mark.parametrize("first", [True, False])
def test_products_of_padded_sizes_run_at_the_rate_of_aligned_ones(
    change: str, precision: str, first: bool
) -> None:
    graph = step(linear(50257, 7000))
    order = ("pad_to_aligned", change) if first else (change, "pad_to_aligned")
    assert GPU is not None
    aligned = float(product_ns(4096, 50264, 768, precision, GPU)) / 1e3
    assert kernel_us(graph, change)["sgemm_128x64"] > 3 * aligned
    casts = (4096 * 768 + 50257 * 768) * 6 / RATE / 1e3 + 2 if change == "amp" else 0
    after = kernel_us(graph, *order)["sgemm_128x64"]
    assert after == pytest.approx(aligned + casts, rel=0.1)


def test_padding_alone_gains_nothing_in_fp32() -> None:
    graph = step(linear(50257, 7000))
    assert step_us(graph, "pad_to_aligned") == step_us(graph)


def test_aligned_sizes_need_no_padding() -> None:
    with pytest.raises(ChangeError, match="every matrix product has rows of multiples of 16 bytes"):
        step_us(step(linear(50304, 7000)), "pad_to_aligned")


def test_a_product_on_another_gpu_takes_what_its_size_takes_there() -> None:
    h100 = find_gpu({"name": "H100"})
    assert GPU is not None
    assert h100 is not None
    sizes = 4096, 50304, 768, "fp32"
    expected = 7000 * float(product_ns(*sizes, h100) / product_ns(*sizes, GPU))
    times = kernel_us(step(linear(50304, 7000), RELU), "faster_gpu:to=H100")
    assert times["sgemm_128x64"] == pytest.approx(expected, rel=0.001)
    assert times["at::native::relu_kernel"] == pytest.approx(5 + 30 * 4800 / 3350, rel=0.01)
