"""Two versions compared: what is identical, changed, gone or new, whatever moved in a list."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

_FILE = Path(__file__).parents[2] / "scripts" / "compare_numbers.py"


@pytest.fixture(scope="module")
def compare_numbers() -> Any:
    spec = importlib.util.spec_from_file_location("compare_numbers", _FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def report(**kernels: float) -> dict[str, Any]:
    rows = [{"name": name, "ms": ms} for name, ms in kernels.items()]
    return {"sentence": "The step waits.", "bound_by": "cpu", "kernels": rows}


def kinds(tool: Any, before: Any, after: Any) -> list[tuple[str, str]]:
    found = tool.differing(dict(tool.leaves(before)), dict(tool.leaves(after)))
    return [(kind, tool.pattern(key)) for kind, key, _ in found if kind != "identical"]


def test_sentences_may_be_rewritten(compare_numbers: Any) -> None:
    after = report(gemm=1.0) | {"sentence": "Data loading limits the step."}
    assert kinds(compare_numbers, report(gemm=1.0), after) == []


def test_a_row_that_is_new_changes_no_other(compare_numbers: Any) -> None:
    found = kinds(compare_numbers, report(gemm=1.0, relu=2.0), report(copy=3, gemm=1.0, relu=2.0))
    assert found == [("new", ".kernels[].ms"), ("new", ".kernels[].name")]


def test_a_word_is_a_fact(compare_numbers: Any) -> None:
    after = report(gemm=1.0) | {"bound_by": "device"}
    assert kinds(compare_numbers, report(gemm=1.0), after) == [("changed", ".bound_by")]


def test_the_last_digit_of_a_sum_is_no_difference(compare_numbers: Any) -> None:
    assert kinds(compare_numbers, report(gemm=0.3), report(gemm=0.1 + 0.2)) == []
    assert kinds(compare_numbers, report(gemm=0.3), report(gemm=0.3001)) == [("changed", ".kernels[].ms")]


def test_a_whole_number_may_be_written_as_a_fraction(compare_numbers: Any) -> None:
    assert kinds(compare_numbers, {"wait": 0}, {"wait": 0.0}) == []
    assert kinds(compare_numbers, {"wait": 0}, {"wait": False}) == [("changed", ".wait")]


def test_zero_is_not_null(compare_numbers: Any) -> None:
    assert kinds(compare_numbers, {"wait": None}, {"wait": 0}) == [("changed", ".wait")]


def test_rows_of_one_name_are_told_apart_by_their_order(compare_numbers: Any) -> None:
    rows = [{"name": "relu", "ms": 1}, {"name": "relu", "ms": 2}]
    assert [key for key, _ in compare_numbers.leaves(rows)] == [
        "[name relu].name",
        "[name relu].ms",
        "[name relu#1].name",
        "[name relu#1].ms",
    ]


def test_it_prints_each_group_once(compare_numbers: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def dumped(ms: float, key: str) -> dict[str, Any]:
        return {"a.json": {"report": {".step_ms": ms, f".{key}": 1.0}}}

    same = compare_numbers.compare(
        dumped(5, "utilisation"), dumped(5, "utilization"), {"utilisation": "utilization"}
    )
    assert same == 0
    assert compare_numbers.compare(dumped(5, "x"), dumped(6, "x"), {}) == 1
    assert "report changed .step_ms: 1 in a.json\n    .step_ms: 5 → 6" in capsys.readouterr().out
