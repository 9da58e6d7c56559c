"""Products in types for which a device has no fast instructions, and in fallbacks of a library."""

from __future__ import annotations

import pytest
from drawn_findings import A100, found

# 512 x 512 x 512 take 268 MFLOP: 3.8 GFLOP/s in 70 ms.
ON_CPU = """
    main | 0 100000     | ProfilerStep#0
    main | 100 {end}    | {name} | Input_Dims={dims} Input_type=["{type}","{type}"] {more}
    main | 100000 200000     | ProfilerStep#1
    main | 100100 {again}    | {name} | Input_Dims={dims} Input_type=["{type}","{type}"] {more}
"""
SQUARE = "[[512,512],[512,512]]"


def product(type: str, ms: float = 70, dims: str = SQUARE, name: str = "aten::mm", more: str = "") -> str:
    end = round(100 + ms * 1000)
    return ON_CPU.format(type=type, end=end, again=end + 100_000, dims=dims, name=name, more=more)


@pytest.mark.parametrize(
    ("type", "word", "fast_with"),
    [("c10::BFloat16", "BF16", "AVX-512 BF16"), ("c10::Half", "FP16", "AVX-512 FP16")],
)
def test_a_type_that_a_cpu_computes_slowly_is_named_with_its_rate(
    type: str, word: str, fast_with: str
) -> None:
    finding = found("slow_fallback", product(type))
    assert finding is not None
    assert f"Products in {word} are slow on this CPU, 70 ms per step. " in finding.what
    assert "run at 3.83 GFLOP/s" in finding.what
    assert finding.advice.startswith("Compute in FP32 on this CPU")
    assert fast_with in finding.advice


def test_the_gain_is_the_time_in_fp32_at_a_low_a_usual_and_a_high_rate() -> None:
    finding = found("slow_fallback", product("c10::BFloat16"))
    assert finding is not None
    assert finding.gain.ms == pytest.approx(70 - 268.4 / 20, abs=0.1)
    assert finding.gain.range_ms == pytest.approx((70 - 268.4 / 10, 70 - 268.4 / 50), abs=0.1)
    assert finding.severity == "critical"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(product("c10::BFloat16", ms=5), id="fast: 54 GFLOP/s"),
        pytest.param(product("float"), id="FP32 is as fast as it gets"),
        pytest.param(product("c10::BFloat16", dims="[[1,4096],[4096,4096]]"), id="waits for memory"),
        pytest.param(product("c10::BFloat16", dims="[[32,32],[32,32]]"), id="too small to tell"),
        pytest.param(product("c10::BFloat16", dims="null"), id="shapes were not recorded"),
        pytest.param(product("c10::BFloat16", ms=3, dims="[[256,256],[256,256]]"), id="below 5 %"),
    ],
)
def test_silent_where_nothing_shows_a_slow_type(text: str) -> None:
    assert found("slow_fallback", text) is None


def test_a_convolution_that_is_slow_by_name_is_found_without_types() -> None:
    text = product("float", name="aten::_slow_conv2d_forward", dims="null")
    finding = found("slow_fallback", text)
    assert finding is not None
    assert finding.what.startswith("aten::_slow_conv2d_forward is a slow fallback of the library")
    assert "FP32" in finding.advice


def test_its_type_is_the_reason_where_it_is_known() -> None:
    text = product("c10::BFloat16", name="aten::_slow_conv2d_forward", dims="null")
    finding = found("slow_fallback", text)
    assert finding is not None
    assert finding.what == (
        "Products in BF16 are slow on this CPU, 70 ms per step. It has no fast instructions for BF16."
    )


KERNEL = """
    main     | 0 1000  | ProfilerStep#0
    main     | 10 20   | {op}   | Input_Dims=[[512,512],[512,512]] Input_type=["{type}","{type}"]
    main     | 12 15   | cudaLaunchKernel | corr=1
    stream 7 | 20 980  | {kernel} | corr=1
    main     | 30 985  | cudaStreamSynchronize
"""


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(product("double"), id="CPU, by type"),
        pytest.param(KERNEL.format(op="aten::mm", type="double", kernel="gemm_kernel"), id="by type"),
        pytest.param(KERNEL.format(op="aten::mm", type="", kernel="volta_dgemm_128x64_nn"), id="by name"),
    ],
)
def test_products_in_fp64_are_found(text: str) -> None:
    finding = found("fp64_matmul", text, devices=A100)
    assert finding is not None
    assert "FP64" in finding.what
    assert "Arrays of NumPy are FP64 by default" in finding.advice


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(product("float"), id="CPU"),
        pytest.param(KERNEL.format(op="aten::mm", type="float", kernel="sgemm"), id="device"),
        pytest.param(product("double", ms=3), id="below 5 %"),
    ],
)
def test_and_nothing_else(text: str) -> None:
    assert found("fp64_matmul", text) is None


def test_elementwise_work_in_fp64_saves_more_than_products() -> None:
    """70 ms of products, half of which FP32 saves, and 20 ms of other work, of which it saves 60 %."""
    exponent = 'main | {} {} | aten::exp | Input_Dims=[[512,512]] Input_type=["double"]'
    text = product("double") + "\n".join(exponent.format(at, at + 20_000) for at in (75_000, 175_000))
    finding = found("fp64_matmul", text)
    assert finding is not None
    assert finding.gain.ms == pytest.approx(35 + 12)
    assert finding.gain.stated_ms == pytest.approx((35, 0.75 * 90))


def test_a_recorded_cpu_says_which_types_it_computes_fast() -> None:
    capture = {"cpu_capability": "AVX512", "threads": 1}
    assert found("slow_fallback", product("c10::BFloat16"), capture=capture) is None
    assert found("slow_fallback", product("c10::Half"), capture=capture) is not None


def test_and_with_how_many_threads() -> None:
    text = product("c10::BFloat16", ms=10)  # 27 GFLOP/s
    capture = {"cpu_capability": "AVX2", "threads": 4}
    assert found("slow_fallback", text, capture=capture) is not None
    assert found("slow_fallback", text, capture={**capture, "threads": 1}) is None
    assert found("slow_fallback", text, capture={"threads": 4}) is None
