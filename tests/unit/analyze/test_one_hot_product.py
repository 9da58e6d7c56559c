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


# 24 rows of 50 classes in FP32 are 4,800 bytes; with their indices XLA reads and writes 4,896.
PROGRAM = """
    main | 0 1000   | stepscope.step#step_num=1 | cat=annotation
    main | 10 900   | PjitFunction(update) | cat=runtime
    pool | 20 200   | compare_fusion | scope=jit(update)/jvp(jit(_one_hot))/eq {bytes}={made}
    pool | 210 400  | dot.1 | scope=jit(update)/{first}/dot_general {sizes}=24x50x8 {flops}=19200 {width}=4
    pool | 600 700  | dot.2 | scope=jit(update)/transpose(jvp())/dot {sizes}=50x24x8 {flops}=19200 {width}=4
    pool | 710 800  | dot.3 | scope=jit(update)/transpose(jvp())/dot {sizes}=8x24x8 {flops}=3072 {width}=4
"""
NAMES = {"sizes": "product__sizes", "flops": "product__flops__from__shapes", "width": "operand__bytes"}
NAMES["bytes"] = "bytes__from__shapes"


@pytest.mark.parametrize(
    ("made", "first", "is_lookup"),
    [
        pytest.param(4896, "jvp()", True, id="a lookup"),
        pytest.param(9696, "jvp()", False, id="other rows"),
        # Logits have the sizes of one-hot labels, and so has their gradient, which products take.
        pytest.param(4896, "transpose(jvp())", False, id="labels of a loss"),
    ],
)
def test_in_a_program_of_xla_a_product_reads_what_one_hot_writes(
    made: int, first: str, is_lookup: bool
) -> None:
    text = PROGRAM.format(made=made, first=first, **NAMES)
    finding = found("one_hot_product", text, framework="jax")
    assert (finding is not None) == is_lookup
    if finding:
        assert {place.name for place in finding.evidence} == {"compare_fusion", "dot.1", "dot.2"}
        assert finding.gain.stated_ms == pytest.approx((0.7 * 0.47, 0.47))
        assert finding.advice.startswith("Look the rows up: weight[indices]")
