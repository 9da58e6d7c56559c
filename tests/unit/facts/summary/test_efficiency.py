"""Operations, rates and utilization of drawn steps."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from stepscope.base.numbers import operations
from stepscope.facts.annotate import annotate
from stepscope.facts.summary.facts import Summary
from stepscope.facts.summary.report_facts import summarize
from stepscope.facts.summary.report_text import print_report
from stepscope.testing import drawn_trace

V100 = ({"id": 0, "name": "Tesla V100-SXM2-16GB"},)
HALF = 'Input_type=["c10::Half","c10::Half"]'
FLOAT = 'Input_type=["float","float"]'
ONCE = 2 * 512**3  # 268 million operations

# A step of 100 us: a product of 40 us in FP32, and a sum of 10 us over 4 MB.
STEP = f"""
    main     |   0 100 | ProfilerStep#0
    main     |   1  40 | ## forward ##
    main     |   2   9 | aten::mm  | Input_Dims=[[512,512],[512,512]] {FLOAT}
    main     |   3   5 | cudaLaunchKernel | corr=1
    main     |  12  19 | aten::add | Input_Dims=[[500,1000],[500,1000]] {FLOAT}
    main     |  13  15 | cudaLaunchKernel | corr=2
    stream 7 |  10  50 | volta_sgemm_128x64 | corr=1
    stream 7 |  50  60 | elementwise_add    | corr=2
"""


def summary(text: str = STEP, **metadata: Any) -> Summary:
    return summarize(annotate(drawn_trace(text, **{"devices": V100, **metadata})))


def printed(found: Summary, width: int = 120) -> str:
    out = io.StringIO()
    print_report(Console(file=out, width=width, color_system=None), [found])
    return out.getvalue()


def test_operations_by_the_step_and_by_their_own_time() -> None:
    found = summary().efficiency
    assert found is not None
    assert found.flops == ONCE
    assert found.tflops == pytest.approx(ONCE / 100e-6 / 1e12)
    assert found.busy_tflops == pytest.approx(ONCE / 40e-6 / 1e12)
    assert found.known == 1


def test_utilization_is_of_the_peak_of_the_precision_in_use() -> None:
    """A V100 has 15.7 TFLOPS in FP32 and 125 in 16 bits."""
    for text, peak, name in ((STEP, 15.7, "fp32"), (STEP.replace(FLOAT, HALF), 125.0, "half")):
        found = summary(text).efficiency
        assert found is not None
        assert (found.gpu, found.peak_tflops) == ("V100", {name: peak})
        assert found.mfu == found.hfu == pytest.approx(ONCE / 100e-6 / 1e12 / peak)
        assert found.busy_utilization == pytest.approx(ONCE / 40e-6 / 1e12 / peak)


def test_a_device_that_is_not_known_has_rates_and_no_utilization() -> None:
    found = summary(devices=({"id": 0, "name": "Unheard-of 9000"},)).efficiency
    assert found is not None
    assert found.tflops > 0
    assert (found.gpu, found.mfu, found.busy_utilization) == ("", None, None)


def test_what_backward_repeats_counts_for_the_hardware_alone() -> None:
    repeated = (
        STEP
        + f"""
    main     |  41  95 | ## backward ##
    main     |  42  50 | aten::mm  | Input_Dims=[[512,512],[512,512]] {FLOAT} seq=7
    main     |  43  45 | cudaLaunchKernel | corr=3
    main     |  52  60 | MmBackward0 | seq=7 fwd=1
    stream 7 |  60  90 | volta_sgemm_128x64 | corr=3
    """
    )
    found = summary(repeated).efficiency
    assert found is not None
    assert (found.flops, found.repeated_flops) == (2 * ONCE, ONCE)
    assert found.hfu == pytest.approx(2 * (found.mfu or 0))
    assert "with recomputation" in printed(summary(repeated))


def test_where_most_is_not_known_no_utilization_is_told() -> None:
    graph = "main | 22 24 | cudaGraphLaunch | corr=3\nstream 7 | 60 {end} | volta_sgemm | corr=3"
    for end, told in ((80, True), (160, False)):
        found = summary(f"{STEP}\n{graph.format(end=end)}").efficiency
        assert found is not None
        assert found.known == pytest.approx(40 / (40 + end - 60))
        assert (found.mfu is not None) is told
    assert "known for 67% of their time" in printed(summary(f"{STEP}\n{graph.format(end=80)}"))


def test_each_kernel_has_its_rates_and_what_limits_it() -> None:
    product, add = summary().kernels
    assert product.tflops == pytest.approx(ONCE / 40e-6 / 1e12)
    assert product.of_peak == pytest.approx(ONCE / 40e-6 / 1e12 / 15.7)
    assert product.limit == "compute"
    assert (add.tflops, add.limit) == (None, "memory")
    assert add.gbytes == pytest.approx(3 * 2e6 / 10e-6 / 1e9)  # two tensors read, one written
    assert add.of_peak == pytest.approx((add.gbytes or 0) / 900)


def test_copies_have_no_share_of_the_devices_memory_rate() -> None:
    text = STEP.replace("elementwise_add   ", "Memcpy HtoD (Pinned)")
    copy = next(one for one in summary(text).kernels if one.kind == "memcpy")
    assert (copy.of_peak, copy.gbytes, copy.limit) == (None, None, "")


def test_modules_have_their_operations_with_those_inside() -> None:
    (root,) = summary(
        STEP
        + """
    main | 1.2 30 | nn.Module: Net_0
    main | 1.5 10 | nn.Module: Linear_0
    """
    ).modules
    assert [(one.name, one.flops) for one in (root, *root.children)] == [("Net_0", ONCE), ("Linear_0", ONCE)]


def test_without_a_device_operators_have_rates() -> None:
    found = summary(f"""
        main | 0 100 | ProfilerStep#0
        main | 2 42  | aten::linear | Input_Dims=[[512,512],[512,512]] {FLOAT}
        main | 2 42  | aten::mm  | Input_Dims=[[512,512],[512,512]] {FLOAT}
    """)
    assert found.efficiency is not None
    assert found.efficiency.flops == ONCE
    assert found.efficiency.tflops == pytest.approx(ONCE / 100e-6 / 1e12)
    (product,) = (one for one in found.kernels if one.name == "aten::mm")
    assert product.tflops == pytest.approx(ONCE / 40e-6 / 1e12)
    assert (product.gbytes, product.of_peak) == (None, None)


def test_without_a_device_the_rate_of_operators_is_told_of_captures_alone() -> None:
    """Another tool may have left out the device, and its calls took as long as their launches."""
    text = """
        main | 0 100 | ProfilerStep#0
        main | 2  42 | aten::mm | Input_Dims=[[512,512],[512,512]] Input_type=["float","float"]
    """
    foreign, ours = (
        summary(text, devices=(), **known).efficiency for known in ({}, {"capture": {"format": "stepscope"}})
    )
    assert foreign is not None
    assert ours is not None
    assert foreign.busy_tflops is None
    assert foreign.tflops == ours.tflops == pytest.approx(ONCE / 100e-6 / 1e12)
    assert ours.busy_tflops == pytest.approx(ONCE / 40e-6 / 1e12)


def test_without_shapes_nothing_is_told() -> None:
    found = summary(STEP.replace("Input_Dims", "other"))
    assert found.efficiency is None
    assert {one.of_peak for one in found.kernels} == {None}
    text = printed(found)
    assert "FLOPs per step" not in text
    assert "of peak" not in text


def test_the_report_tells_it_where_there_is_room() -> None:
    text = printed(summary())
    assert "whole step                268.4 MFLOP      2.68       17%   MFU" in text
    assert "\ncounted: matrix products, convolutions and attention" in text
    assert "V100: 15.7 TFLOP/s in FP32" in text
    assert "43%   compute" in text
    narrow = printed(summary(), 80)
    assert "43%   compute" not in narrow
    assert max(map(len, narrow.splitlines())) <= 80


def test_a_kernel_faster_than_the_device_is_explained() -> None:
    assert "over 100%" not in printed(summary())
    text = printed(summary(STEP.replace("10  50 |", "10  16 |")))
    assert "285%" in text
    assert "over 100%: fewer operations than counted" in text


def test_slow_work_is_told_in_smaller_units() -> None:
    text = printed(summary(STEP.replace("10  50 |", "10 5000 |").replace("50  60 |", "5000 5010 |")))
    assert "GFLOP/s" in text


def test_numbers_of_operations() -> None:
    assert [operations(one) for one in (12, 1000 / 3, 3.4e9, 7.776e11, 2.5e15)] == [
        "12 FLOP",
        "333 FLOP",
        "3.4 GFLOP",
        "777.6 GFLOP",
        "2500.0 TFLOP",
    ]


@pytest.mark.parametrize(
    ("tokens", "lengths_us", "calls", "differ"),
    [
        ([100, 200, 400, 300], [110, 210, 420, 300], [1, 1, 1, 1], True),
        ([400, 400, 410, 400], [400, 800, 410, 400], [1, 1, 1, 1], False),  # of one size
        ([100, 200, 400, 300], [300, 290, 300, 310], [1, 1, 1, 1], False),  # something else takes the time
        ([100, 100, 400, 100], [100, 110, 420, 100], [1, 1, 3, 1], False),  # an evaluation, as its calls show
        ([100, 400], [100, 400], [1, 1], False),  # too few to tell
    ],
)
def test_steps_of_batches_that_differ_in_size(
    tokens: list[int], lengths_us: list[int], calls: list[int], differ: bool
) -> None:
    lines, now = [], 0
    for step, (size, length, times) in enumerate(zip(tokens, lengths_us, calls, strict=True)):
        lines.append(f"main | {now} {now + length} | ProfilerStep#{step}")
        for call in range(times):
            shape = f"Input_Dims=[[{size},512],[512,512]] {FLOAT}"
            lines.append(f"main | {now + 20 * call} {now + 20 * call + 18} | aten::mm | {shape}")
        now += length
    found = summary("\n".join(lines), devices=())
    assert found.efficiency is not None
    each = 2 * 512**2
    assert found.efficiency.unequal_steps == ((each * min(tokens), each * max(tokens)) if differ else None)
    assert ("batches differ in size: 52.4 MFLOP to 209.7 MFLOP per step" in printed(found)) is differ
