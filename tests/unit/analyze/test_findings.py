"""Findings: their severity, JSON, tables; and the list of rules."""

from __future__ import annotations

import io
import json
from itertools import pairwise
from pathlib import Path

import pytest
from drawn_findings import V100, findings
from msgspec.structs import replace
from rich.console import Console

from stepscope.analyze import (
    RULES,
    Finding,
    Gain,
    Place,
    Rule,
    RuleContext,
    apply_rules,
    load_rules,
    with_findings,
)
from stepscope.analyze.analysis import Analysis, Heading, group_findings
from stepscope.analyze.findings_text import gain_text, print_findings
from stepscope.errors import RuleError, TraceError
from stepscope.facts.annotate import annotate
from stepscope.facts.summary.report_facts import summarize
from stepscope.testing import drawn_trace
from stepscope.trace.trace import Trace

RULE_FILES = Path(__file__).parents[3] / "src" / "stepscope" / "analyze" / "rules"
LOADING = """
    main | 0 100 | ProfilerStep#0
    main | 10 70 | enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__
    main | 70 99 | aten::mm
"""
PLACE = Place("aten::mm", "forward", "", "", None, "", 1.0, 1.0, (2,))


def finding(ms: float) -> Finding:
    return Finding(
        rule="rule", what="What.", advice="Do.", evidence=(PLACE,), gain=Gain(ms, "at most"), step_ms=100.0
    )


@pytest.mark.parametrize(
    ("ms", "severity"), [(1, "info"), (4.9, "info"), (5, "warning"), (19, "warning"), (20, "critical")]
)
def test_severity_follows_from_the_share_of_the_step(ms: float, severity: str) -> None:
    assert finding(ms).severity == severity


def test_the_worst_comes_first_and_less_than_a_hundredth_is_dropped() -> None:
    gains = [2.0, 0.9, 30.0]

    def three(context: RuleContext) -> list[Finding]:
        rows = context.search.find("aten::mm")
        return [
            context.finding("What.", "Do.", rows, context.gains.bound(ms / 1e3, "at most")) for ms in gains
        ]

    context = RuleContext(annotate(drawn_trace(LOADING)))
    found = apply_rules(context, [Rule(three)])
    assert [one.gain.ms for one in found] == [0.030, 0.002]
    assert {one.rule for one in found} == {"three"}


def test_gains_of_the_run_and_of_a_step_are_ordered_by_their_time() -> None:
    """Their shares are of different wholes."""

    def both(context: RuleContext) -> list[Finding]:
        of_step = finding(0.06)
        return [replace(of_step, of="run", gain=Gain(0.05), step_ms=0.06), replace(of_step, step_ms=0.1)]

    found = apply_rules(RuleContext(annotate(drawn_trace(LOADING))), [Rule(both)])
    assert [one.of for one in found] == ["step", "run"]


def test_samples_of_a_line_and_a_finding_there_are_one() -> None:
    at_line = replace(PLACE, file="train.py", line=7)
    stall = replace(finding(40), evidence=(at_line,), cause="stall")
    sampled = replace(finding(30), evidence=(replace(at_line, events=()),), cause="sampled")
    elsewhere = replace(sampled, evidence=(replace(at_line, events=(), line=8),))
    groups = group_findings([stall, sampled, elsewhere])
    assert [(one.main, one.related) for one in groups] == [(stall, (sampled,)), (elsewhere, ())]


def test_no_finding_without_evidence() -> None:
    context = RuleContext(annotate(drawn_trace(LOADING)))
    with pytest.raises(ValueError, match="expected at least one event as evidence"):
        context.finding(
            "What.", "Do.", context.search.find("no such event"), context.gains.bound(1, "at most")
        )


def test_a_finding_in_words() -> None:
    place = replace(PLACE, name="autograd::engine::evaluate_function: MmBackward0")
    for high, shown in ((30.001, "30.00 ms, 30% of the step: why"), (40, "(30.00 to 40.00 ms)")):
        gain = Gain(30, "why", range_ms=(30, high))
        one = Finding(rule="rule", what="What.", advice="Do.", evidence=(place,), gain=gain, step_ms=100.0)
        out = io.StringIO()
        print_findings(Console(file=out, width=120), Analysis(Heading("trace", 1), (one,)))
        assert shown in out.getvalue()
        assert "  MmBackward0 × 1, 1.00 ms per step, forward" in out.getvalue()


def test_a_share_of_the_step_without_delays_says_so() -> None:
    delayed = replace(finding(30), step_ms=100.0, steady_ms=60.0)
    assert gain_text(delayed, "step").plain.startswith("saves up to 30.00 ms, 50% of the step without delays")
    assert "of the step:" in gain_text(replace(delayed, steady_ms=99.5), "step").plain


def test_findings_are_plain_json() -> None:
    facts = json.loads(json.dumps([one.to_json() for one in findings(LOADING)]))
    assert [one["rule"] for one in facts] == ["input_bound"]
    assert facts[0]["changes"] == ["dataloader"]
    assert facts[0]["gain_ms"] == pytest.approx(0.06)
    assert facts[0]["evidence"][0]["events"] == [1]


def test_findings_are_tables_of_the_trace() -> None:
    trace = annotate(drawn_trace(LOADING))
    found = with_findings(trace, apply_rules(RuleContext(trace), RULES))
    assert not len(trace["findings"])
    rows = found.query("""
        select rule, severity, gain_ns, changes, events.name
        from findings join evidence on evidence.finding = findings.id
        join events on events.id = evidence.event
    """).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        (
            "input_bound",
            "critical",
            60000,
            "dataloader",
            "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
        )
    ]


def test_a_step_without_a_defect_has_no_finding() -> None:
    assert (
        findings(
            """
        main     |  0 50  | ProfilerStep#0
        main     | 10 12  | aten::mm
        main     | 10 12  | cudaLaunchKernel | corr=1
        stream 7 | 14 900 | volta_fp16_s884gemm | corr=1
    """,
            devices=V100,
        )
        == []
    )


def test_the_first_step_is_left_out_where_it_warms_up() -> None:
    trace = annotate(
        drawn_trace("""
        main |    0 5000 | ProfilerStep#0
        main |   10 4900 | enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__
        main | 5000 5100 | ProfilerStep#1
        main | 5001 5099 | aten::mm
        main | 5100 5200 | ProfilerStep#2
        main | 5101 5199 | aten::mm
    """)
    )
    assert RuleContext(trace).measures.step_ms == pytest.approx(0.1)
    assert apply_rules(RuleContext(trace), RULES) == []


def test_the_report_and_what_ifs_leave_out_the_same_steps_and_no_other() -> None:
    """The second step still warms up."""
    begins = [0, 1000, 1400, 1500, 1600, 1700]
    trace = annotate(
        drawn_trace(
            "\n".join(
                f"main | {begin} {end} | ProfilerStep#{step}"
                for step, (begin, end) in enumerate(pairwise([*begins, 1800]))
            )
        )
    )
    context = RuleContext(trace)
    assert context.steps["step"].tolist() == [2, 3, 4, 5]
    assert context.measures.summary.steps.numbers == summarize(trace).steps.numbers == [2, 3, 4, 5]
    assert context.gains.graph.window.steps == (2, 3, 4, 5)


def test_a_trace_without_steps_is_refused() -> None:
    with pytest.raises(TraceError, match="at least one recorded step"):
        RuleContext(Trace({}))


def test_a_rank_that_is_not_there_is_refused() -> None:
    with pytest.raises(TraceError, match="there is no rank 5; the trace has 0"):
        RuleContext(annotate(drawn_trace(LOADING)), rank=5)


# -- the list of rules


def test_every_rule_has_a_file_of_its_own_and_says_when_it_is_silent() -> None:
    files = {path.stem for path in RULE_FILES.glob("*.py")} - {"__init__"}
    assert files == {rule.name for rule in RULES}
    for rule in RULES:
        assert rule.summary.endswith("."), rule.name
        assert rule.silent.startswith("Silent"), rule.name


MINE = '''
from stepscope.analyze import Rule

def many_products(context):
    """Many matrix products."""
    rows = context.search.find(r"^aten::mm$")
    if len(rows):
        gain = context.gains.bound(context.measures.ms(rows), "at most")
        yield context.finding("Many.", "Fewer.", rows, gain)

RULES = [Rule(many_products)]
'''


def test_rules_of_the_users_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    context = RuleContext(annotate(drawn_trace(LOADING)))
    assert [one.rule for one in apply_rules(context, load_rules(file))] == ["many_products"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f(:", "cannot load rules: SyntaxError"),
        ("RULES = 3", "expected a list RULES of stepscope.analyze.Rule, found int"),
        ("", "found NoneType"),
        ("raise SystemExit('no')", "cannot load rules: SystemExit: no"),
        ("raise GeneratorExit", "cannot load rules: GeneratorExit"),
        (
            "class Stop(KeyboardInterrupt): ...\nraise Stop('two\\nlines')",
            "cannot load rules: Stop: two lines",
        ),
    ],
)
def test_a_file_without_rules_fails_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises(RuleError, match=message) as error:
        load_rules(file)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("error", [KeyError("x"), SystemExit("x"), GeneratorExit("x"), BaseException("x")])
def test_a_rule_that_fails_is_named(error: BaseException) -> None:
    def broken(context: RuleContext) -> list[Finding]:
        raise error

    with pytest.raises(RuleError, match=rf"rule broken failed on .*{type(error).__name__}: '?x"):
        apply_rules(RuleContext(annotate(drawn_trace(LOADING))), [Rule(broken)])


def test_control_c_ends_a_rule() -> None:
    def interrupted(context: RuleContext) -> list[Finding]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        apply_rules(RuleContext(annotate(drawn_trace(LOADING))), [Rule(interrupted)])


@pytest.mark.parametrize(
    ("file", "short"),
    [
        ("/workspace/traces/train.py", "traces/train.py:23 in step"),
        ("C:\\Users\\me\\src\\train.py", "src/train.py:23 in step"),
        ("src/train.py", "src/train.py:23 in step"),
        ("train.py", "train.py:23 in step"),
        ("", "layer1"),
    ],
)
def test_a_sentence_shortens_the_path_of_a_file_or_names_the_module(file: str, short: str) -> None:
    place = Place("aten::mm", "forward", "layer1", file, 23, "step", 1.0, 1.0)
    assert place.short == short
