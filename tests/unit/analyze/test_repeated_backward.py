"""Backward passes of several losses through the same operators, instead of one of their sum."""

from __future__ import annotations

import pytest
from drawn_findings import found

# A trunk and two heads; the second loss goes back through the trunk again.
TWO_LOSSES = """
    main | 0 1000   | ProfilerStep#0
    main | 10 100   | stepscope.module: net.trunk
    main | 20 90    | aten::mm | seq=1
    main | 110 130  | aten::mean | seq=2
    main | 140 160  | aten::sum | seq=3
    main | 170 180  | Optimizer.zero_grad#SGD.zero_grad
    main | 200 210  | autograd::engine::evaluate_function: MeanBackward0 | seq=2 fwd=1
    main | 220 320  | autograd::engine::evaluate_function: MmBackward0 | seq=1 fwd=1
{first}
    main | 330 350  | autograd::engine::evaluate_function: torch::autograd::AccumulateGrad
{between}
    main | 400 410  | autograd::engine::evaluate_function: SumBackward0 | seq=3 fwd=1
    main | 420 520  | autograd::engine::evaluate_function: MmBackward0 | seq={again} fwd=1
    main | 530 560  | {leaf}
    main | 540 550  | {adds}
    main | 910 940  | Optimizer.step#SGD.step
"""
LEAF = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"


def drawn(
    *, first: str = "", between: str = "", again: int = 1, leaf: str = LEAF, adds: str = "aten::add_"
) -> str:
    return TWO_LOSSES.format(first=first, between=between, again=again, leaf=leaf, adds=adds)


def test_a_second_pass_through_the_same_operators_is_found() -> None:
    finding = found("repeated_backward", drawn())
    assert finding is not None
    assert finding.what == (
        "Backward goes through the same operators 2 times per update. "
        "All but one of these passes take 0.13 ms per step. Most is in net.trunk."
    )
    assert finding.gain.ms == pytest.approx(0.14)  # with 10 µs between the product and what adds its gradient
    assert finding.gain.stated_ms == pytest.approx((0.0, 0.189))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(drawn(again=4), id="of another forward pass"),
        pytest.param(drawn(between="main | 370 380 | Optimizer.zero_grad#SGD.zero_grad"), id="zeroed"),
        pytest.param(drawn(between="main | 370 380 | Optimizer.step#SGD.step"), id="used"),
        pytest.param(drawn(adds="aten::detach"), id="released between, as to project gradients"),
        pytest.param(drawn(leaf="aten::sum"), id="of torch.autograd.grad, which adds to no gradient"),
        pytest.param(
            drawn(
                first="    main | 230 300 | aten::mm | seq=9",
                between="    main | 370 390 | autograd::engine::evaluate_function: MmBackward0 | seq=9 fwd=1",
            ),
            id="a gradient that is differentiated",
        ),
    ],
)
def test_passes_that_are_needed_are_not(text: str) -> None:
    assert found("repeated_backward", text) is None


# A row of a Hessian: torch.autograd.grad goes back through the pass that made the gradient.
GRADIENT = """
    main | 0 {end}  | ProfilerStep#0
    main | 10 110   | stepscope.module: net
    main | 20 50    | aten::mm | seq=1
    main | 60 90    | aten::sin | seq=2
    main | 120 150  | autograd::engine::evaluate_function: SinBackward0 | seq=2 fwd=1
    main | 125 145  | aten::cos | seq=3
    main | 150 180  | autograd::engine::evaluate_function: MmBackward0 | seq=1 fwd=1
    main | 155 175  | aten::mm | seq=4
"""
ROW = """
    main | {0} {1}  | autograd::engine::evaluate_function: MmBackward0 | seq=4 fwd=1
    main | {1} {2}  | autograd::engine::evaluate_function: CosBackward0 | seq=3 fwd=1
"""


def hessian(rows: int) -> str:
    begins = [200 + 100 * row for row in range(rows)]
    text = "".join(ROW.format(begin, begin + 50, begin + 100) for begin in begins)
    end = 200 + 100 * rows
    return GRADIENT.format(end=end + 50) + text + f"    main | {end} {end + 50} | Optimizer.step#SGD.step\n"


def test_rows_of_a_hessian_are_found() -> None:
    finding = found("repeated_backward", hessian(8))
    assert finding is not None
    assert finding.what == (
        "Backward goes through the same operators 8 times per update. "
        "All but one of these passes take 0.7 ms per step."
    )
    assert "is_grads_batched=True" in finding.advice
    assert finding.gain.ms == pytest.approx(0.7)  # 7 of 8 passes of 100 µs
    assert finding.gain.stated_ms == pytest.approx((0.0, 0.945))


def test_fewer_gradients_of_gradients_are_not() -> None:
    assert found("repeated_backward", hessian(7)) is None
