"""What an expert sees on a GPU: slow convolutions, unaligned sizes, many tables, a scaler that waits."""

from __future__ import annotations

from math import prod

import pytest
from drawn_findings import found

H200 = ({"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "numSms": 132},)
SAME = '"","","","[1,1]","[1,1]","[1,1]","1"'


def tensors(*sizes: list[int], values: str = "", types: str = "float") -> str:
    """The arguments of an operator on contiguous tensors."""
    empty = [[]] * (7 - len(sizes)) if values else []
    dims = str([*sizes, *empty]).replace(" ", "")
    strides = str([[1] * len(size) for size in [*sizes, *empty]]).replace(" ", "")
    kinds = ",".join([f'"{types}"'] * len(sizes) + ['""'] * len(empty))
    values = values or ",".join(['""'] * len(sizes))
    return f"Input_Dims={dims} Input_Strides={strides} Input_type=[{kinds}] Concrete_Inputs=[{values}]"


def steps(*calls: tuple[str, str, str, int], times: int = 2) -> str:
    """Steps that wait for their calls: operator, arguments, kernel and its us of each."""
    lines, length = [], sum(us for *_, us in calls) + 20 * len(calls) + 40
    for step in range(times):
        at = cpu = step * length
        lines.append(f"main | {at} {at + length} | ProfilerStep#{step}")
        device = at + 10
        for place, (name, arguments, kernel, us) in enumerate(calls):
            link = step * len(calls) + place + 1
            lines.append(f"main | {cpu + 2} {cpu + 14} | {name} | {arguments}")
            lines.append(f"main | {cpu + 4} {cpu + 8} | cudaLaunchKernel | corr={link}")
            lines.append(f"stream 7 | {device} {device + us} | {kernel} | corr={link}")
            cpu, device = cpu + 18, device + us
        lines.append(f"main | {cpu} {max(cpu, device) + 4} | cudaDeviceSynchronize")
    return "\n".join(lines)


def convolution(channels: int, places: int, us: int) -> tuple[str, str, str, int]:
    arguments = tensors([16, channels, places, places], [channels, channels, 3, 3], values=SAME)
    return "aten::conv2d", arguments, "implicit_gemm_f32f32_f32", us


def test_a_convolution_far_slower_than_equal_ones_is_found() -> None:
    finding = found(
        "slow_convolution", steps(convolution(128, 128, 1800), convolution(256, 64, 9000)), devices=H200
    )
    assert finding is not None
    assert "1 convolutions per step take 5 times as long as equal ones. They take 9 ms" in finding.what
    assert "8.6 TFLOP/s; others reach 43" in finding.what
    assert "torch.backends.cudnn.benchmark = True" in finding.advice
    assert finding.gain.changes == ("cudnn_benchmark",)
    assert finding.gain.ms == pytest.approx(7.2, abs=0.05)


@pytest.mark.parametrize(
    "calls",
    [
        [convolution(128, 128, 1800), convolution(256, 64, 4000)],
        [convolution(64, 128, 500), convolution(256, 64, 9000)],
    ],
    ids=["a little slower", "of other work"],
)
def test_other_convolutions_are_not(calls: list[tuple[str, str, str, int]]) -> None:
    assert found("slow_convolution", steps(*calls), devices=H200) is None


@pytest.mark.parametrize(
    ("operator", "words"),
    [
        ("aten::conv2d", "allow_tf32 = True (the default) for TF32, or use torch.autocast with bfloat16 and"),
        ("aten::lstm", "allow_tf32 = True (the default) for TF32, or use torch.autocast with bfloat16."),
        ("aten::addmm", "torch.set_float32_matmul_precision('high')"),
    ],
)
def test_cudnn_has_a_switch_of_its_own_for_tf32(operator: str, words: str) -> None:
    name, arguments, _, us = convolution(128, 128, 9000)
    kernel = "implicit_convolve_sgemm" if operator == name else "sgemm_128x64"
    square = tensors([2048], [2048, 2048], [2048, 2048])
    call = operator, arguments if operator == name else square, kernel, us
    product = "aten::mm", tensors([4096, 4096], [4096, 4096]), "sgemm_128x64", 5000
    finding = found("fp32_matmul", steps(call, product), devices=H200)
    assert finding is not None
    assert words in finding.advice


def linear(columns: int) -> tuple[str, str, str, int]:
    return "aten::linear", tensors([4096, 768], [columns, 768]), "sgemm_128x64", 7000


def test_sizes_are_padded_before_tensor_cores_compute() -> None:
    finding = found("fp32_matmul", steps(linear(50257)), devices=H200)
    assert finding is not None
    assert finding.advice.startswith("First pad sizes that are not multiples of 8 (50257). ")
    assert finding.gain.changes == ("amp", "pad_to_aligned")


def test_aligned_sizes_stay() -> None:
    finding = found("fp32_matmul", steps(linear(50304)), devices=H200)
    assert finding is not None
    assert "pad" not in finding.advice
    assert finding.gain.changes == ("amp",)


def attention(heads: int) -> str:
    query, scores = [heads, 512, 64], [heads, 512, 512]
    return steps(
        ("aten::bmm", tensors(query, [heads, 64, 512]), "sgemm_scores", 300),
        ("aten::softmax", tensors(scores), "softmax_warp_forward", 400),
        ("aten::bmm", tensors(scores, query), "sgemm_values", 310),
    )


def test_attention_written_out_gains_what_sdpa_does() -> None:
    finding = found("unfused_attention", attention(96), devices=H200)
    assert finding is not None
    assert finding.gain.changes == ("sdpa",)
    assert finding.gain.ms == pytest.approx(0.78, abs=0.06)  # of 1.01 ms


def embeddings(count: int, us: int) -> str:
    table = tensors([1000, 64], [2048])
    backward = ("aten::embedding_dense_backward", tensors([2048, 64], [2048]), "radix_sort", us)
    forward = ("aten::embedding", table, "gather_kernel", 5)
    return steps(*[forward] * count, *[backward] * count)


def test_many_tables_one_by_one_are_found() -> None:
    finding = found("many_embeddings", embeddings(26, 6), devices=H200)
    assert finding is not None
    assert finding.what.startswith("26 embedding tables per step are looked up one by one")
    assert "Their dense gradients take 26 kernels, 0.156 ms" in finding.what


@pytest.mark.parametrize(("count", "us"), [(4, 6), (26, 300)], ids=["few", "long kernels move data"])
def test_few_or_large_tables_are_not(count: int, us: int) -> None:
    assert found("many_embeddings", embeddings(count, us), devices=H200) is None


SCALED = """
    main     |    0 1000 | ProfilerStep#0
    main     |   10   30 | aten::mm
    main     |   12   16 | cudaLaunchKernel | corr=1
    main     |   40   60 | {unscale}
    main     |   42   46 | cudaLaunchKernel | corr=2
    main     |   70  700 | aten::item
    main     |   72  690 | aten::_local_scalar_dense
    main     |   74   78 | cudaMemcpyAsync | corr=3
    main     |   80  680 | cudaStreamSynchronize
    main     |  720  740 | aten::add
    main     |  722  726 | cudaLaunchKernel | corr=4
    stream 7 |   20  600 | sgemm | corr=1
    stream 7 |  600  650 | unscale_kernel | corr=2
    stream 7 |  650  652 | Memcpy DtoH (Device -> Pageable) | corr=3
    stream 7 |  730  990 | add_kernel | corr=4
"""


@pytest.mark.parametrize(
    ("unscale", "is_scaler"),
    [("aten::_amp_foreach_non_finite_check_and_unscale_", True), ("aten::_foreach_mul_", False)],
)
def test_a_scaler_that_waits_is_named(unscale: str, is_scaler: bool) -> None:
    finding = found("synchronizing_calls", SCALED.format(unscale=unscale), devices=H200)
    assert finding is not None
    assert finding.advice.startswith("GradScaler.step reads") == is_scaler


def compiled(*products: tuple[str, int]) -> str:
    """A program of XLA: products by sizes and batch, with a fusion after each."""
    lines, at = ["main | 0 5000 | ProfilerStep#0", "main | 5 20 | cudaGraphLaunch | corr=1"], 20
    for sizes, batch in products:
        flops = 2 * batch * prod(map(int, sizes.split("x")))
        arguments = f"product__sizes={sizes} product__flops__from__shapes={flops}"
        lines.append(f"stream 7 | {at} {at + 100} | gemm_fusion_dot | corr=1 {arguments}")
        lines.append(f"stream 7 | {at + 100} {at + 400} | loop_fusion | corr=1")
        at += 400
    return "\n".join([*lines, f"main | 30 {at} | cudaDeviceSynchronize"])


def test_attention_of_jax_is_found_by_the_sizes_of_its_products() -> None:
    finding = found(
        "unfused_attention",
        compiled(("512x128x512", 256), ("128x512x512", 256)),
        devices=H200,
        framework="jax",
    )
    assert finding is not None
    assert "0.3 ms per step. The kernels between its products" in finding.what
    assert "implementation='cudnn'" in finding.advice


@pytest.mark.parametrize(
    "products",
    [
        [("512x128x512", 1), ("128x512x512", 1)],  # a layer's gradients: single products
        [("512x128x512", 256), ("512x256x128", 256)],
        [("512x1024x512", 256), ("1024x512x512", 256)],  # wider than any head
    ],
)
def test_other_products_of_jax_are_no_attention(products: list[tuple[str, int]]) -> None:
    assert found("unfused_attention", compiled(*products), devices=H200, framework="jax") is None
