"""A model of hundreds of nested modules has all its levels, in every output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stepscope.base.json_text import json_bytes
from stepscope.faces.terminal.commands import stepscope
from stepscope.faces.terminal.output import echo_json
from stepscope.facts.annotate import annotate
from stepscope.facts.summary.report_facts import summarize
from stepscope.read import read

DEEP = 500


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A step with modules nested so deep, each with an operator of its own."""
    step = {"name": "ProfilerStep#1", "cat": "user_annotation", "ts": 0, "dur": 30 * DEEP}
    events = [step]
    for level in range(DEEP):
        name = f"nn.Module: Block_{level}"
        events.append({"name": name, "cat": "python_function", "ts": level, "dur": 10 * DEEP - 2 * level})
        events.append({"name": "aten::linear", "cat": "cpu_op", "ts": level + 0.25, "dur": 0.5})
    whole = {"traceEvents": [{"ph": "X", "pid": 1, "tid": 1, **event} for event in events]}
    path = tmp_path_factory.mktemp("deep") / "trace.json"
    path.write_text(json.dumps(whole))
    return path


def run(*arguments: str) -> str:
    wide = CliRunner(env={"COLUMNS": "200"})  # the tree is indented by its depth
    result = wide.invoke(stepscope, [*arguments, "--no-cache"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_report_as_json(deep: Path) -> None:
    text = run("report", str(deep), "--json")  # deeper than Python's own reader goes
    assert text.count('"children": ') == DEEP


def test_the_report_as_a_table(deep: Path) -> None:
    assert "Block_40" in run("report", str(deep), "--depth", "50")


def test_the_answer_for_the_page(deep: Path) -> None:
    summary = summarize(annotate(read(deep)))
    assert json_bytes(summary.modules).count(b'"children":') == DEEP


@pytest.mark.parametrize(
    "facts", [{}, [], [[]], "é", {"a": [1, {"b": ()}], 1: 2.5, "c": {}}, [None, (1, None)]], ids=str
)
def test_json_is_written_as_by_the_standard_library(facts: Any, capsys: pytest.CaptureFixture[str]) -> None:
    echo_json(facts)
    assert capsys.readouterr().out == json.dumps(facts, indent=1) + "\n"
