"""A module that is called for one row after the other, with all that one call would save."""

from __future__ import annotations

import pytest
from drawn_findings import found

MODEL = {"name": "net", "class": "Net", "children": [{"name": "layer", "class": "Linear"}]}
NODE = "autograd::engine::evaluate_function:"


def rows(count: int, us: int = 8, trained: bool = True, late: int = 0, gap: int = 0) -> str:
    """Each row alone: indexing, a product and a loss, with 10 us of Python between two of them.

    The last product loses its core for a while; after each call something else runs for `gap` us.
    """
    text, at = ["main | 0 9000 | ProfilerStep#0"], 10
    for number in range(count):
        us += late * (number == count - 1)
        text += [
            f"main | {at} {at + 5} | aten::select",
            f"main | {at + 15} {at + 17 + us} | stepscope.module: layer",
            f"main | {at + 16} {at + 16 + us} | aten::linear | seq={number + 1}",
        ]
        at += 30 + us + gap
    for number in reversed(range(count if trained else 0)):
        text.append(f"main | {at} {at + 20} | {NODE} MmBackward0 | seq={number + 1} fwd=1")
        at += 20
    return "\n".join(text)


def test_the_gain_is_of_all_calls_forward_and_backward() -> None:
    finding = found("repeated_module", rows(64), model=MODEL)
    assert finding is not None
    assert finding.what.startswith("A module is called 64 times per step")
    low, high = finding.gain.stated_ms
    assert high == pytest.approx(63 * (0.038 + 0.020), rel=0.02)
    assert low == pytest.approx(0.6 * high)


@pytest.mark.parametrize("other", ["aten::gru_cell", "aten::relu"])
def test_neither_a_call_that_lost_its_core_nor_a_recurrent_cell_elsewhere_hides_it(other: str) -> None:
    text = f"{rows(64, late=4000)}\nmain | 8900 8990 | {other}"
    assert found("repeated_module", text, model=MODEL) is not None


def test_an_operator_that_loops_by_itself_is_one_call() -> None:
    calls = [line for line in rows(64).splitlines() if "module" not in line and "select" not in line]
    layer = ["main | 12 2440 | stepscope.module: layer", "main | 15 2439 | aten::gru"]
    assert found("repeated_module", "\n".join([*calls, layer[0]]), model=MODEL) is not None
    assert found("repeated_module", "\n".join([*calls, *layer]), model=MODEL) is None


@pytest.mark.parametrize(
    "text",
    [rows(8), rows(64, us=60), rows(64, trained=False), rows(16, gap=400)],
    ids=["few calls", "calls with much work", "no training", "an environment between the calls"],
)
def test_other_calls_are_no_finding(text: str) -> None:
    assert found("repeated_module", text, model=MODEL) is None
