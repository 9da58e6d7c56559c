"""A loop of Python over elements of tensors, as a loss over pairs, with its backward pass."""

from __future__ import annotations

import pytest
from drawn_findings import found

NODE = "autograd::engine::evaluate_function:"


def pairs(count: int, operator: str = "aten::select", step_us: int = 4000, layers: int = 0) -> str:
    """Each pair alone, in turns in some layers: an element, a product, and 10 us of Python after each.

    Then backward.
    """
    text, at = [f"main | 0 {step_us} | ProfilerStep#0"], 10
    for number in range(count):
        text += [f"main | {at - 1} {at + 21} | stepscope.module: {number % layers}"] if layers else []
        text += [
            f"main | {at} {at + 5} | {operator} | seq={2 * number}",
            f"main | {at + 15} {at + 20} | aten::dot | seq={2 * number + 1}",
        ]
        at += 30
    for number in reversed(range(2 * count)):
        text.append(f"main | {at} {at + 5} | {NODE} Backward0 | seq={number} fwd=1")
        at += 5
    return "\n".join(text)


def test_a_loop_over_elements_costs_all_of_its_calls() -> None:
    finding = found("element_loop", pairs(70))
    assert finding is not None
    assert finding.what == "Python takes 70 parts of tensors one by one per step."
    most = 70 * (0.030 + 0.010)
    assert finding.gain.stated_ms == pytest.approx((most / 2, most), rel=0.02)


@pytest.mark.parametrize(
    "text",
    [pairs(30), pairs(70, "aten::relu"), pairs(70, step_us=20_000), pairs(70, layers=10)],
    ids=["few elements", "other operators", "a small part of the step", "few in each layer"],
)
def test_other_loops_are_none(text: str) -> None:
    assert found("element_loop", text) is None
