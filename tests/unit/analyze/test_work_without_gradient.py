"""Operators of the forward pass that train nothing: made again in each step, or of a large buffer."""

from __future__ import annotations

import pytest
from drawn_findings import found

STEP = """
    main | 0 1000   | ProfilerStep#0
    main | 10 700   | stepscope.module: net
    main | 20 100   | aten::mm | seq=1
{work}
    main | 710 720  | aten::sum | seq=2
    main | 730 740  | autograd::engine::evaluate_function: SumBackward0 | seq=2 fwd=1
    main | 750 900  | autograd::engine::evaluate_function: MmBackward0 | seq=1 fwd=1
    main | 910 940  | Optimizer.step#SGD.step
"""


@pytest.mark.parametrize(
    "inside",
    [
        pytest.param("", id="dense"),
        pytest.param("main | 30 60 | aten::addmm", id="a sparse product"),
        pytest.param("main | 920 930 | aten::dot", id="an update with products, as of LBFGS"),
        pytest.param("main | 120 130 | aten::to\n main | 140 150 | aten::item", id="a conversion inside"),
    ],
)
def test_an_operator_of_the_forward_pass_without_gradient_is_found(inside: str) -> None:
    work = f"{inside}\n main | 110 500 | aten::_unique2\n main | 510 590 | aten::scatter_add_"
    finding = found("work_without_gradient", STEP.format(work=work))
    assert finding is not None
    assert finding.what == (
        "Forward operators that train nothing take 0.5 ms per step (50%). Most is in net. "
        "Longest: aten::_unique2 once, aten::scatter_add_ once."
    )
    assert finding.gain.ms == pytest.approx(0.5)  # with 10 and 20 µs until the next operators


@pytest.mark.parametrize(
    "work",
    [
        pytest.param("main | 110 170 | aten::_unique2", id="less than 10 % of the step"),
        pytest.param("main | 110 500 | aten::randn_like", id="noise is new in each step"),
        pytest.param("main | 110 500 | aten::mm", id="a product, as of a frozen model"),
        pytest.param("main | 110 500 | c10d::send | seq=2", id="a pipeline sends to the next stage"),
        pytest.param(
            "main | 110 600 | stepscope.module: net.teacher\n main | 120 200 | aten::mm\n"
            "main | 210 590 | aten::gelu",
            id="a module that runs without gradients as a whole",
        ),
        pytest.param("main | 110 500 | aten::where | seq=3", id="with a gradient"),
    ],
)
def test_nothing_else_is(work: str) -> None:
    text = STEP.format(work=work)
    if "seq=3" in work:
        text = text.replace("main | 730", "main | 725 728 | WhereBackward0 | seq=3 fwd=1\n main | 730")
    assert found("work_without_gradient", text) is None
