"""What is derived in threads is what one thread derives."""

from __future__ import annotations

from pathlib import Path

import pytest
from examples import assert_same

import stepscope
from stepscope import parallel

ROOT = Path(__file__).parents[3]


@pytest.fixture
def trace_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six steps with streams, backward links and collectives of streams."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from big_trace import write_trace

    return write_trace(tmp_path / "steps.json", 3000)


def test_threads_derive_the_same_tables(trace_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = stepscope.open(trace_file, cache=False)
    monkeypatch.setattr(parallel, "_MIN_ROWS", 0)
    monkeypatch.setattr(parallel, "usable_cores", lambda: 3)
    assert_same(stepscope.open(trace_file, cache=False), alone)


def test_results_are_in_order_and_an_error_is_raised() -> None:
    numbers = list(range(50))
    assert parallel.in_threads(lambda number: number * 2, numbers, 1 << 20) == [
        number * 2 for number in numbers
    ]
    with pytest.raises(ZeroDivisionError):
        parallel.in_threads(lambda number: 1 // number, numbers, 1 << 20)
