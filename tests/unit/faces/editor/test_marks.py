"""Marks, hovers and problems from measured costs."""

from __future__ import annotations

from typing import Any

from lsprotocol import types as lsp

from stepscope.faces.editor.documents import Documents, of_findings
from stepscope.faces.editor.line_marks import LineMark, hover_text, marks_of
from stepscope.faces.editor.measuring import FileCosts, Measured, Problem, Settings, settings_of
from stepscope.models.batch_size.breakdown import LineBreakdown, ModuleTime, OperatorTime

CONV = LineBreakdown(
    file="/m.py",
    line=2,
    ms=6.0,
    forward_ms=2.0,
    backward_ms=4.0,
    weights_bytes=1_000_000,
    activations_bytes=500_000,
    modules=[ModuleTime("layer1.conv", 5.5), ModuleTime("", 0.5)],
    operators=[OperatorTime("aten::conv2d", 6.0)],
)
RELU = LineBreakdown(file="/m.py", line=3, ms=1.0, forward_ms=0.5, backward_ms=0.5)


def mark_of(share: float, **cost: Any) -> LineMark:
    return LineMark(0, False, LineBreakdown(file="/m.py", line=1, **cost), share)


def test_marks_are_where_their_lines_are_now():
    costs = FileCosts(["a", "b", "c"], {2: CONV, 3: RELU}, step_ms=10.0)
    found = marks_of(costs, ["new", "a", "b", "changed"])
    assert [(mark.line, mark.stale, mark.text) for mark in found] == [
        (2, False, "6.00 ms · 60% · 1.5 MB"),
        (3, True, "(1.00 ms · 10%)"),
    ]
    assert marks_of(costs, ["a"]) == []


def test_what_takes_next_to_nothing_is_no_mark():
    assert not mark_of(0.0004, ms=0.01).shown
    holding = mark_of(0.0004, ms=0.01, weights_bytes=8)
    assert holding.shown
    assert holding.text == "8 B"


def test_a_hover_tells_where_the_time_goes():
    assert hover_text(LineMark(1, True, CONV, 0.5)).splitlines() == [
        "**6.00 ms** per step, 50% of it",
        "",
        "*Stale: this line has changed since it was measured.*",
        "",
        "forward 2.00 ms, backward 4.00 ms",
        "",
        "weights 1.0 MB, activations 500.0 kB",
        "",
        "| module           | per step |      |",
        "|:-----------------|---------:|-----:|",
        "| `layer1.conv`      |  5.50 ms |  92% |",
        "| `the model itself` |  0.50 ms | 8.3% |",
        "",
        "| operator     | per step |      |",
        "|:-------------|---------:|-----:|",
        "| `aten::conv2d` |  6.00 ms | 100% |",
    ]


def test_the_table_of_a_hover_is_aligned_where_tables_are_not_drawn():
    """Helix and Neovim show the text, without the backticks."""
    shown = hover_text(LineMark(1, True, CONV, 0.5)).replace("`", "").split("\n\n")
    table = next(part for part in shown if part.startswith("| module")).splitlines()
    assert len({len(line) for line in table}) == 1


def test_a_hover_sums_up_what_is_beyond_the_longest():
    modules = [ModuleTime(f"layer{n}", 1.0) for n in range(15)]
    text = hover_text(mark_of(1.0, ms=15.0, modules=modules))
    assert "`layer7`" in text
    assert "`layer8`" not in text
    assert "| `7 more` |  7.00 ms |  47% |" in text


def test_names_cannot_format_the_hover():
    modules = [ModuleTime("a`|b](x)", 1.0)]
    assert "| `a'\\|b](x)` |" in hover_text(mark_of(1.0, ms=1.0, modules=modules))


def test_a_finding_is_at_every_line_it_names_once():
    evidence = [{"file": "/m.py", "line": 4}, {"file": "/m.py", "line": 4}, {"file": "", "line": 1}]
    finding = {"severity": "critical", "what": "Slow.", "advice": "Fuse.", "evidence": evidence}
    nowhere = {"severity": "info", "what": "Waits.", "advice": "Load.", "evidence": []}
    (slow, first), (entry, top) = of_findings(Measured("/t.py", {}, findings=[finding, nowhere]))
    assert (slow, first.range.start.line, first.message) == ("/m.py", 3, "Slow. Fuse.")
    assert entry == "/t.py"
    assert (top.range.start.line, top.severity) == (0, lsp.DiagnosticSeverity.Information)


def test_a_failure_keeps_what_was_measured_before():
    documents = Documents()
    measured = Measured("/t.py", {"/m.py": FileCosts(["x"])})
    documents.succeed(measured)
    documents.problems["/t.py"] = Problem("boom", "/m.py", 7)
    assert documents.costs_of("/m.py") is not None
    assert documents.entry_of("/m.py") == "/t.py"
    assert documents.diagnostics()["/m.py"][0].range.start.line == 6
    documents.succeed(measured)
    assert documents.diagnostics() == {}


def test_settings_from_an_editor_that_sends_nonsense_are_the_defaults():
    sent = {"stepscope": {"timeLimit": "soon", "hints": "lens", "arguments": ["--lr", 1]}}
    assert settings_of(sent) == Settings(hints="lens", arguments=("--lr", "1"))
    assert settings_of(None) == Settings()
    nonsense = {"measureOnSave": "false", "arguments": "--lr 1", "timeLimit": -1, "hints": ["x"]}
    assert settings_of(nonsense) == settings_of({"timeLimit": float("nan")}) == Settings()
    assert settings_of({"measureOnSave": False, "timeLimit": 5}) == Settings(False, time_limit=5)


def test_a_hover_tells_what_there_is_to_tell():
    making = hover_text(mark_of(0.0, weights_bytes=2_600))
    assert making.strip() == "weights 2.6 kB"
    cost = LineBreakdown(
        file="/m.py", line=5, ms=12.0, forward_ms=4.0, backward_ms=8.0, activations_bytes=2_100_000
    )
    computing = hover_text(LineMark(4, True, cost, 0.5))
    assert computing.strip().split("\n\n") == [
        "**12.00 ms** per step, 50% of it",
        "*Stale: this line has changed since it was measured.*",
        "forward 4.00 ms, backward 8.00 ms",
        "activations 2.1 MB",
    ]
