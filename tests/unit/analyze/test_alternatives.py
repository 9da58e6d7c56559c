"""Fixes that exclude each other do not add up, and dense tables count with their update."""

from __future__ import annotations

import pytest
from drawn_findings import findings, found

from stepscope.analyze import RULES, RuleContext
from stepscope.analyze.analysis import analysis_of
from stepscope.facts.annotate import annotate
from stepscope.testing import drawn_trace

MODEL = {"name": "table", "class": "Embedding", "parameters": 1_600_000}


def tables(rows: int, backward_us: int) -> str:
    """A table of `rows` rows of which 256 are used, whose update takes 900 us, in three steps."""
    text, node = [], "autograd::engine::evaluate_function: EmbeddingBackward0"
    for step in range(3):
        at, seq = 2000 * step, step + 1
        begin = at + 100 + backward_us
        text += [
            f"main | {at} {at + 1900} | ProfilerStep#{step}",
            f"main | {at + 10} {at + 90} | stepscope.module: table",
            f"main | {at + 20} {at + 30} | aten::embedding | seq={seq} Input_Dims=[[{rows},16],[256]]",
            f"main | {at + 100} {begin} | {node} | seq={seq} fwd=1",
            f"main | {at + 101} {begin - 1} | EmbeddingBackward0 | seq={seq} fwd=1",
            f"main | {begin + 10} {begin + 910} | Optimizer.step#Adam.step",
            *(f"main | {begin + 12 + 20 * k} {begin + 30 + 20 * k} | aten::sqrt" for k in range(44)),
        ]
    return "\n".join(text)


@pytest.mark.parametrize("operator", ["aten::embedding", "aten::_embedding_bag"])
@pytest.mark.parametrize(("rows", "is_named"), [(100_000, True), (300, False)])
def test_a_dense_table_counts_with_its_update(rows: int, is_named: bool, operator: str) -> None:
    """Its gradient alone takes 3 % of the step; the update of all rows takes most of it."""
    text = tables(rows, 60).replace("aten::embedding", operator)
    if operator != "aten::embedding":
        text = text.replace("EmbeddingBackward0", "EmbeddingBagBackward0")
    finding = found("forward_backward", text, model=MODEL)
    assert (finding is not None) is is_named
    if finding:
        assert finding.share > 0.4
        assert "sparse=True" in finding.advice


def test_a_fused_update_and_sparse_gradients_are_not_added() -> None:
    trace = annotate(drawn_trace(tables(100_000, 400), model=MODEL))
    analysis = analysis_of(RuleContext(trace), RULES)
    rules = {one.rule for one in analysis.findings if one.gain.edit is not None}
    assert "forward_backward" in rules
    assert analysis.together is None


DOUBLE = """
    main | 0 1000 | ProfilerStep#0
    main | 10 410 | aten::mm | Input_type=["double","double"] Input_Dims=[[64,64],[64,64]]
    main | 420 720 | aten::gelu | Input_type=["double"]
    main | 730 900 | aten::gelu | Input_type=["float"]
"""


def test_fp64_costs_more_than_its_products() -> None:
    finding = found("fp64_matmul", DOUBLE)
    assert finding is not None
    low, high = finding.gain.stated_ms
    assert low == pytest.approx(0.2)
    assert finding.gain.ms == pytest.approx(0.5 * 0.4 + 0.6 * 0.3)
    assert high == pytest.approx(0.525)


MUON = """
    main | 0 1000 | ProfilerStep#0
    main | 100 900 | Optimizer.step#Muon.step
    main | 110 510 | aten::mm
"""


def test_products_of_an_update_stay() -> None:
    calls = "\n".join(f"main | {at} {at + 8} | aten::mul_" for at in range(520, 880, 9))
    (finding,) = (one for one in findings(MUON + calls) if one.rule == "optimizer_loop")
    assert finding.gain.ms == pytest.approx(0.4)
