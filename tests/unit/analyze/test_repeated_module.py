"""A module that is called for one row after the other, with all that one call would save."""

from __future__ import annotations

from pathlib import Path

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


def listed(count: int, lists: int = 2) -> str:
    """In each of some layers, the modules of a list: a product of 8 us in each, with 2 us between them."""
    text, at, names = ["main | 0 2000 | ProfilerStep#0"], 10, list[str]()
    names = [f"{layer}.heads.{number}" for layer in range(lists) for number in range(count)]
    for number, name in enumerate(names):
        if number % count == 0:  # other work of each layer
            text += [f"main | {at + 16 * one} {at + 16 * one + 14} | aten::relu" for one in range(6)]
            at += 100
        text += [
            f"main | {at} {at + 8} | stepscope.module: {name}",
            f"main | {at} {at + 8} | aten::linear | seq={number}",
        ]
        at += 10
    for number in reversed(range(len(names))):
        text.append(f"main | {at} {at + 18} | {NODE} MmBackward0 | seq={number} fwd=1")
        at += 20
    return "\n".join(text)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("cat([head(x) for head in heads])", "A loop calls 16 modules of one kind"),
        ("for head in heads:\n    outs.append(head(x))", "A loop calls 16 modules of one kind"),
        ("for head in heads:\n    x = head(x)", None),
        ("", None),  # a file that is there no more, or has changed
    ],
    ids=["comprehension", "loop", "layers", "unknown"],
)
def test_modules_of_a_list_are_one_module_where_no_call_needs_the_last_one(
    source: str, says: str | None, tmp_path: Path
) -> None:
    (file := tmp_path / "net.py").write_text(source)
    line = 1 + source.count("\n")
    place = {"class": "Linear", "call_file": str(file), "call_line": line, "parameters": 64}
    heads = [{"name": str(number), **place} for number in range(8)]
    layers = [
        {
            "name": str(layer),
            "class": "Layer",
            "children": [{"name": "heads", "class": "ModuleList", "children": heads}],
        }
        for layer in range(2)
    ]
    finding = found("repeated_module", listed(8), model={"name": "net", "class": "Net", "children": layers})
    assert (finding and finding.what.partition(" with")[0]) == says
    if finding is not None:
        assert {(place.file, place.line) for place in finding.evidence} == {(str(file), line)}
        # Two lists of eight: one call of each is left.
        assert finding.gain.ms == pytest.approx(16 * 0.030 * (1 - 2 / 16), rel=0.03)


def test_a_loop_that_needs_each_result_is_told_to_compile(tmp_path: Path) -> None:
    (file := tmp_path / "ode.py").write_text("def solve(y):\n    for t in times:\n        y = layer(y)\n")
    model = {"name": "net", "children": [{"name": "layer", "call_file": str(file), "call_line": 3}]}
    finding = found("repeated_module", rows(64), model=model)
    assert finding is not None
    assert finding.advice.startswith("Each call needs the last one's result: compile")
    low, high = finding.gain.stated_ms
    assert low == pytest.approx(0.3 * high)


WEIGHT = "layer.parametrizations.weight"
PARAMETRIZED = {
    "name": "net",
    "children": [
        {"name": "layer", "children": [{"name": "parametrizations", "children": [{"name": "weight"}]}]}
    ],
}


def computed(calls: int, updates: int) -> str:
    """Calls that each compute a weight in 50 us and its gradient in 30; updates after equal parts of them."""
    text, at = ["main | 0 1000 | ProfilerStep#0"], 10
    for number in range(calls):
        text += [
            f"main | {at} {at + 50} | stepscope.module: {WEIGHT}",
            f"main | {at} {at + 50} | aten::matrix_exp | seq={number}",
            f"main | {at + 50} {at + 60} | aten::linear",
            f"main | {at + 60} {at + 90} | {NODE} Backward0 | seq={number} fwd=1",
        ]
        if (number + 1) % (calls // updates) == 0:
            text.append(f"main | {at + 92} {at + 98} | Optimizer.step#SGD.step")
        at += 100
    return "\n".join(text)


def test_a_weight_is_computed_once_for_each_update() -> None:
    finding = found("repeated_module", computed(8, updates=2), model=PARAMETRIZED)
    assert finding is not None
    assert finding.what.startswith("Parametrized weights are computed again 6 times per step.")
    assert "parametrize.cached()" in finding.advice
    low, high = finding.gain.stated_ms
    assert (low, high) == pytest.approx((0.6 * high, 6 * 0.090), rel=0.02)  # 10 us to the next call
    assert found("repeated_module", computed(8, updates=8), model=PARAMETRIZED) is None
