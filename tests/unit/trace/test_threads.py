"""What is derived in threads is what one thread derives."""

from __future__ import annotations

import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest
from examples import assert_same

import stepscope
from stepscope.analyze import RULES, RuleContext
from stepscope.analyze.analysis import analysis_of
from stepscope.base import parallel
from stepscope.graph import build_graph
from stepscope.models.whatif.ranking import rank_changes

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six steps on two threads and four streams, with launches and backward links."""
    path = tmp_path_factory.mktemp("threads") / "steps.json"
    subprocess.run([sys.executable, ROOT / "benchmarks" / "big_trace.py", "3000", path], check=True)
    return path


def test_threads_derive_the_same_tables(trace_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = stepscope.open(trace_file, cache=False)
    monkeypatch.setattr(parallel, "_MIN_ROWS", 0)
    monkeypatch.setattr(parallel, "usable_cores", lambda: 3)
    assert_same(stepscope.open(trace_file, cache=False), alone)


def test_changes_tried_in_threads_predict_the_same(trace_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = stepscope.open(trace_file, cache=False)
    named = trace.with_metadata(devices=({"id": 0, "name": "NVIDIA A100", "computeMajor": 8},))
    alone = rank_changes(build_graph(named))
    assert len(alone.gains) >= 4
    assert "amp" in {change for one in alone.gains for change in one.changes}
    monkeypatch.setattr(parallel, "_MIN_ROWS", 0)
    monkeypatch.setattr(parallel, "usable_cores", lambda: 3)
    for _ in range(3):
        again = stepscope.open(trace_file, cache=False).with_metadata(devices=named.metadata.devices)
        assert rank_changes(build_graph(again)) == alone


def test_rules_applied_in_threads_find_the_same(trace_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = analysis_of(RuleContext(stepscope.open(trace_file, cache=False)), RULES)
    assert len(alone.findings) >= 2
    assert alone.together
    monkeypatch.setattr(parallel, "_MIN_ROWS", 0)
    monkeypatch.setattr(parallel, "usable_cores", lambda: 3)
    for _ in range(3):
        context = RuleContext(stepscope.open(trace_file, cache=False))
        assert analysis_of(context, RULES) == alone


def test_results_are_in_order_and_an_error_is_raised() -> None:
    numbers = list(range(50))
    assert parallel.in_threads(lambda number: number * 2, numbers, 1 << 20) == [
        number * 2 for number in numbers
    ]
    many = range(10_000)
    assert parallel.in_threads(lambda number: number * 2, many, 1 << 20) == [number * 2 for number in many]
    with pytest.raises(ZeroDivisionError):
        parallel.in_threads(lambda number: 1 // number, numbers, 1 << 20)


@pytest.mark.parametrize("cores", [1, 2])
def test_work_in_the_background_is_waited_for(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    monkeypatch.setattr(parallel, "usable_cores", lambda: cores)
    counter = count(1)
    result = parallel.in_background(lambda: next(counter), 1 << 20)
    assert (result(), result()) == (1, 1)
    with pytest.raises(ZeroDivisionError):
        parallel.in_background(lambda: 1 // 0, 1 << 20)()
