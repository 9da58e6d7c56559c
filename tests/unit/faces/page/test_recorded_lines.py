"""What is told of a file without steps, and of lines by collected contexts."""

from __future__ import annotations

from pathlib import Path

import pytest
from serving import STEP, ask, collected, opened

from stepscope.faces.page.trace_view import TraceView
from stepscope.trace.trace import Trace


@pytest.fixture
def alone(tmp_path: Path) -> TraceView:
    return collected(tmp_path, Trace({}))


def test_a_file_without_steps_has_no_facts_and_says_why(alone: TraceView) -> None:
    told = ask(alone, "overview")
    assert (told["facts"], told["steps"], told["start"]) == (None, [], "")
    assert told["has"]["contexts"]
    assert "expected at least one recorded step, found none" in told["why"]


def test_lines_of_a_collected_run_cost_what_they_called(alone: TraceView, tmp_path: Path) -> None:
    (file,) = ask(alone, "sources")["files"]
    assert file["file"] == str(tmp_path / "train.py")
    assert file["readable"]
    told = ask(alone, "source", file=file["file"])
    assert told["per"] == "recording"
    assert told["text"].startswith("import torch")
    (line,) = told["lines"]
    assert (line["line"], line["name"]) == (3, "<module>")
    assert line["cpu_ms"] == pytest.approx(0.05)
    assert line["device_ms"] == pytest.approx(0.031)
    assert line["share"] == pytest.approx(50 / 60)  # of all that was collected


def test_a_file_with_both_tells_steps_and_on_demand_the_recording(tmp_path: Path) -> None:
    both = collected(tmp_path, opened(STEP).trace)
    assert ask(both, "sources") == {"files": [], "per": "step"}
    told = ask(both, "sources", whole=1)
    assert told["per"] == "recording"
    assert [one["cpu_ms"] for one in told["files"]] == [pytest.approx(0.05)]


def test_a_file_with_nothing_in_it_names_no_line() -> None:
    assert ask(opened(""), "sources") == {"files": [], "per": "step"}
