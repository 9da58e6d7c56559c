"""One-hot rows times a weight: a lookup by other means."""

from __future__ import annotations

import pytest
from drawn_findings import found

STEP = """
    main | 0 1000   | ProfilerStep#0
    main | 10 700   | stepscope.module: net
    main | 20 200   | aten::one_hot | Input_Dims=[[4,6],[]]
    main | 210 300  | aten::to | Input_Dims=[[4,6,50],[],[],[],[]]
    main | 310 400  | aten::linear | Input_Dims={product} seq=1
    main | 410 420  | aten::sum | seq=2
    main | 730 740  | autograd::engine::evaluate_function: SumBackward0 | seq=2 fwd=1
    main | 750 900  | autograd::engine::evaluate_function: MmBackward0 | seq=1 fwd=1
    main | 910 940  | Optimizer.step#SGD.step
"""


def test_a_product_of_one_hot_rows_is_a_lookup() -> None:
    finding = found("one_hot_product", STEP.format(product="[[4,6,50],[8,50],[]]"))
    assert finding is not None
    assert finding.what == "One-hot rows are multiplied with a weight, 0.51 ms per step. Most is in net."
    assert finding.gain.range_ms == pytest.approx((0.7 * 0.51, 0.51))


@pytest.mark.parametrize("product", ["[[4,6,58],[8,58],[]]", "[[24,8],[50,8],[]]"])
def test_a_product_of_other_rows_is_none(product: str) -> None:
    assert found("one_hot_product", STEP.format(product=product)) is None
