"""What is advised for a step on a CPU is what its kernels can do."""

from __future__ import annotations

import pytest
from drawn_findings import found

ATTENTION = """
    main | 0 1000  | ProfilerStep#0
    main | 10 600  | aten::scaled_dot_product_attention
    main | 20 590  | aten::_scaled_dot_product_attention_math
    main | 30 100  | aten::bmm
    main | 110 300 | aten::_softmax
    main | 310 500 | {}
    main | 320 480 | aten::bernoulli_
    main | 510 580 | aten::bmm
    main | 610 990 | aten::mm
"""


def test_attention_that_falls_back_for_its_dropout_says_so() -> None:
    finding = found("unfused_attention", ATTENTION.format("aten::dropout"))
    assert finding is not None
    assert "because of dropout" in finding.advice


def test_attention_that_falls_back_without_dropout_names_what_the_kernel_needs() -> None:
    finding = found("unfused_attention", ATTENTION.format("aten::noise"))
    assert finding is not None
    assert "a mask that needs no gradient" in finding.advice
    assert "float16" not in finding.advice


MASKED = """
    main | 0 1000   | ProfilerStep#0
    main | 10 980   | stepscope.module: attn | class=MultiheadAttention
    main | 20 200   | aten::baddbmm
    main | 30 100   | aten::copy_
    main | 210 500  | aten::_softmax
    main | 510 580  | aten::bmm
    main | 990 999  | Optimizer.step#SGD.step
"""


def test_a_product_that_copies_its_mask_first_makes_scores_as_well() -> None:
    finding = found("unfused_attention", MASKED)
    assert finding is not None
    assert "0.29 ms per step" in finding.what
    assert finding.gain.range_ms == pytest.approx((0.0, 0.54))  # at most all of attention


def test_masks_of_dropout_are_not_taken_for_initial_weights() -> None:
    text = ATTENTION.format("aten::dropout").replace("110 300", "110 120")
    finding = found("hotspot", text)
    assert finding is not None
    assert "bernoulli_" in finding.what
    assert finding.advice.startswith("Dropout draws these random masks")


def test_random_numbers_elsewhere_are_advised_as_before() -> None:
    text = "main | 0 1000 | ProfilerStep#0\n main | 10 900 | aten::bernoulli_"
    sampling = found("hotspot", text)
    assert sampling is not None
    assert "Draw all random numbers of an iteration in one call" in sampling.advice
    finding = found("hotspot", f"{text}\n main | 950 990 | Optimizer.step#SGD.step")
    assert finding is not None
    assert "Initialize weights once" in finding.advice


CHECKPOINTED = """
    main | 0 1000   | ProfilerStep#0
    main | 10 200   | stepscope.module: net
    main | 20 190   | aten::addmm | seq=1
    main | 300 600  | autograd::engine::evaluate_function: CheckpointBackward | seq=2 fwd=1
    main | 310 480  | stepscope.module: net
    main | 320 470  | aten::addmm | seq=3
    main | 490 590  | autograd::engine::evaluate_function: AddmmBackward0 | seq=3 fwd=1
    main | 700 800  | Optimizer.step#SGD.step
"""


def test_a_forward_pass_that_is_computed_again_is_named_but_never_urgent() -> None:
    finding = found("recomputation", CHECKPOINTED)
    assert finding is not None
    assert finding.severity == "info"
    assert finding.gain.ms == pytest.approx(0.17)
    assert (
        found("recomputation", CHECKPOINTED.replace("310 480", "310 315").replace("320 470", "311 314"))
        is None
    )


@pytest.mark.parametrize(("inside", "finds"), [("train.py(3): main", True), ("a range", False)])
def test_marks_and_ranges_alone_do_not_show_that_python_runs(inside: str, finds: bool) -> None:
    """The report says of them that they do not show what a step does."""
    lines = [f"main | {9000 * step} {9000 * (step + 1)} | ProfilerStep#{step}" for step in range(3)]
    category = "" if finds else " | cat=annotation"
    lines += [f"main | {9000 * step + 9} {9000 * step + 8000} | {inside}{category}" for step in range(3)]
    assert (found("cpu_latency", "\n".join(lines)) is not None) == finds
