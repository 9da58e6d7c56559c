"""`stepscope analyze`: sentences, JSON, the gate, rules of the user's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from stepscope.analyze import RULES, load_rules
from stepscope.faces.page.requests import Query
from stepscope.faces.page.routes import answer
from stepscope.faces.page.trace_view import TraceView
from stepscope.faces.terminal.commands import stepscope
from stepscope.facts.load import open as open_trace

# Two steps that wait for data for half of their time; times in us.
_LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
EVENTS = [
    {"ph": "X", "pid": 1, "tid": 1, "ts": start + begin, "dur": length, "name": name, "cat": kind}
    for number, start in ((0, 0), (1, 1000))
    for begin, length, name, kind in (
        (0, 1000, f"ProfilerStep#{number}", "user_annotation"),
        (10, 500, _LOADER, "user_annotation"),
        (520, 470, "aten::mm", "cpu_op"),
    )
]


@pytest.fixture
def trace(tmp_path: Path) -> str:
    file = tmp_path / "waits.json"
    file.write_text(json.dumps({"traceEvents": EVENTS}))
    return str(file)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(stepscope, ["analyze", *arguments])


def test_findings_in_sentences(trace: str) -> None:
    done = run(trace)
    assert done.exit_code == 0
    assert f"waits.json   1 finding · {len(RULES)} rules · step time 1.00 ms" in done.output
    words = " ".join(done.output.split())
    assert "critical The loop waits 50% of the step while batches load" in words
    assert "saves up to 0.50 ms, 50% of the step" in words
    assert "what-if dataloader" in words


def test_findings_as_json(trace: str) -> None:
    facts = json.loads(run(trace, "--json").output)
    steps = facts["steps"]
    assert (steps["numbers"], steps["mean_ms"]) == ([0, 1], 1.0)
    assert (steps["device_busy_ms"], steps["device_idle_ms"]) == (None, None)  # without a device
    assert [(one["rule"], one["severity"]) for one in facts["findings"]] == [("input_bound", "critical")]


@pytest.mark.parametrize("level", ["info", "warning", "critical"])
def test_a_finding_as_bad_as_that_fails_the_gate(trace: str, level: str) -> None:
    assert run(trace, "--fail-on", level).exit_code == 1


def test_the_gate_lets_less_than_that_pass(trace: str, tmp_path: Path) -> None:
    sound = tmp_path / "sound.json"
    events = [one for one in EVENTS if one["name"] != _LOADER]
    sound.write_text(json.dumps({"traceEvents": events}))
    done = run(str(sound), "--fail-on", "info")
    assert (done.exit_code, "0 findings" in done.output) == (0, True)
    assert "No rule explains this: Python limits the step" in done.output


def test_an_excluded_first_step_is_shown(trace: str, tmp_path: Path) -> None:
    assert "excluded as warm-up" not in run(trace).output
    slow = {**EVENTS[0], "dur": 9000}
    second = [{**one, "ts": one["ts"] + 8000} for one in EVENTS[3:]]
    third = [{**one, "ts": one["ts"] + 1000} for one in second]
    third[0]["name"] = "ProfilerStep#2"
    file = tmp_path / "slow.json"
    file.write_text(json.dumps([slow, *second, *third]))
    words = " ".join(run(str(file)).output.split())
    assert "step time 1.00 ms (warm-up excluded)" in words


def test_rules_of_the_users_own_run_when_they_are_named(trace: str, tmp_path: Path) -> None:
    rules = tmp_path / "mine.py"
    rules.write_text(
        "from stepscope.analyze import Rule\n"
        "def products(context):\n"
        "    rows = context.search.find('^aten::mm$')\n"
        "    gain = context.gains.bound(0.9, 'at most')\n"
        "    yield context.finding('Products.', 'Fewer.', rows, gain)\n"
        "RULES = [Rule(products)]\n"
    )
    assert "Products." in run(trace, "--rules", str(rules)).output
    page = TraceView(open_trace(trace), rules=load_rules(rules))
    shown = answer(page, "findings", Query({}))
    assert shown.rules == len(RULES) + 1
    assert "Products." in [finding.what for finding in shown.findings]
    assert run(trace, "--rules", str(tmp_path / "none.py")).exit_code == 2
    rules.write_text("RULES = 1")
    for command in (["analyze"], ["view", "--no-browser"], ["report", "--html", str(tmp_path / "page.html")]):
        done = CliRunner().invoke(stepscope, [*command, trace, "--rules", str(rules)])
        assert done.exit_code == 2
        assert done.output.strip().count("\n") == 0
    assert not (tmp_path / "page.html").exists()


def test_findings_are_asked_for_in_sql(trace: str) -> None:
    sql = "select rule, severity, changes from findings"
    done = CliRunner().invoke(stepscope, ["query", trace, sql, "--format", "csv"])
    assert done.output == "rule,severity,changes\ninput_bound,critical,dataloader\n"
