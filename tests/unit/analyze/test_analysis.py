"""How rules are applied: what is dropped, grouped, ordered and left to rules that explain in general."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from drawn_findings import A100, repeated
from msgspec.structs import replace

from stepscope.analyze import Finding, Gain, Place, Rule, RuleContext, apply_rules
from stepscope.analyze.analysis import Analysis, Heading, analysis_of, group_findings
from stepscope.analyze.finding import Patch
from stepscope.facts.annotate import annotate
from stepscope.facts.summary.job_findings import JobFindings
from stepscope.testing import drawn_trace

PLACE = Place("aten::mm", "forward", "", "", None, "", 1.0, 1.0, (1, 2, 3, 4))
DEVICE = """
    main     | 10 12 | aten::mm
    main     | 10 11 | cudaLaunchKernel | corr=1
    stream 7 | 20 220 | volta_gemm | corr=1
    main     | 400 600 | aten::sort
    main     | 700 702 | aten::mm
    main     | 700 701 | cudaLaunchKernel | corr=2
    stream 7 | 720 920 | volta_gemm | corr=2
"""


def context(text: str = repeated(DEVICE), **metadata: Any) -> RuleContext:
    return RuleContext(annotate(drawn_trace(text, **metadata)))


def found(ms: float, **facts: Any) -> Finding:
    known: dict[str, Any] = {
        "what": "What.",
        "advice": "Do.",
        "evidence": (PLACE,),
        "gain": Gain(ms),
        "step_ms": 100.0,
    }
    return Finding(**known | facts)


def rule(name: str, *gains_ms: float, **facts: Any) -> Rule:
    """A rule that says of the events of a step that they cost so much."""

    def function(one: RuleContext) -> Iterator[Finding]:
        rows = one.search.find("aten::sort")
        for ms in gains_ms:
            yield one.finding("What.", "Do.", rows, one.gains.bound(ms, "why"))

    function.__name__ = name
    return Rule(function, **facts)


@pytest.mark.parametrize(
    ("other", "is_related"),
    [
        ({"cause": "a"}, True),
        ({"evidence": (replace(PLACE, events=(3, 4)),)}, True),
        ({"evidence": (replace(PLACE, events=(4, 5)),)}, True),  # half of its events
        ({"evidence": (replace(PLACE, events=(4, 5, 6)),)}, False),
        ({"evidence": (replace(PLACE, events=(4,)), replace(PLACE, events=(3, 7, 8)))}, True),
        ({"evidence": (replace(PLACE, events=(), contexts=(4, 5)),)}, True),
        ({"evidence": (replace(PLACE, events=(), contexts=(5,)),)}, False),
        ({"evidence": (replace(PLACE, events=()),)}, False),  # no line tells more
    ],
)
def test_findings_of_one_cause_or_of_the_same_events_are_one_group(
    other: dict[str, Any], is_related: bool
) -> None:
    main, second = found(30, cause="a"), found(20, **{"cause": "b"} | other)
    groups = [(one.main, one.related) for one in group_findings([main, second])]
    assert groups == ([(main, (second,))] if is_related else [(main, ()), (second, ())])


@pytest.mark.parametrize(("ms", "is_related"), [(1.0, True), (1.01, False)])
def test_samples_are_grouped_by_half_of_their_time(ms: float, is_related: bool) -> None:
    at_line = replace(PLACE, events=(), file="a.py", line=3)
    main = found(30, cause="a", evidence=(at_line, replace(at_line, line=None)))
    places = (at_line, replace(at_line, line=4, ms=ms), replace(at_line, line=None, ms=0.0))
    second = found(20, cause="b", evidence=places)
    assert len(group_findings([main, second])) == 2 - is_related
    assert (
        len(
            group_findings(
                [
                    found(30, cause="c", evidence=(replace(at_line, ms=0.0),)),
                    replace(second, evidence=(replace(at_line, ms=0.0),)),
                ]
            )
        )
        == 2
    )


def test_several_findings_join_the_first_group_that_fits() -> None:
    first, second = found(30, cause="a"), found(25, cause="b", evidence=(replace(PLACE, events=(9,)),))
    third, fourth = replace(second, cause="a"), replace(second, gain=Gain(5.0))
    groups = group_findings([first, second, third, fourth])
    assert [(one.main, one.related) for one in groups] == [(first, (third,)), (second, (fourth,))]


def test_findings_are_ordered_by_severity_then_time_then_share_then_rule() -> None:
    def several(one: RuleContext) -> list[Finding]:
        return [
            found(4, rank=1),
            found(30, rank=2),
            found(30, rank=3, step_ms=90.0),
            found(40, rank=4, limit="info"),
            found(25, rank=5, limit="warning"),
            found(6, rank=6),
        ]

    assert [one.rank for one in apply_rules(context(), [Rule(several)])] == [3, 2, 5, 6, 4, 1]
    twice = apply_rules(context(), [rule("b", 0.1), rule("a", 0.1)])
    assert [(one.rule, one.cause) for one in twice] == [("a", "a"), ("b", "b")]
    assert [one.cause for one in apply_rules(context(), [rule("a", 0.1, cause="c")])] == ["c"]


def test_gains_below_a_hundredth_of_the_step_are_dropped_but_those_of_notices() -> None:
    assert [one.gain.ms for one in apply_rules(context(), [rule("a", 0.01, 0.00999, 0.0)])] == [0.01]
    assert len(apply_rules(context(), [rule("a", 0.01, 0.00999, 0.0, notice=True)])) == 3


@pytest.mark.parametrize(
    ("explaining", "general"),
    [
        ([], True),
        ([rule("a", 0.3)], True),  # explains nothing
        ([rule("a", 0.3, explains=("data",))], True),
        ([rule("a", 0.27, explains=("host",))], True),  # less than half of the idle time
        ([rule("a", 0.3, explains=("host",))], False),
        ([rule("a", 0.14, explains=("host",)), rule("b", 0.16, explains=("host", "launch"))], False),
    ],
)
def test_rules_that_explain_in_general_apply_where_others_do_not(
    explaining: list[Rule], general: bool
) -> None:
    """The device idles for 0.562 ms of the step as the CPU launches nothing."""
    one = context(devices=A100)
    assert one.measures.summary.verdict.bound_by == "host"
    assert one.measures.idle_ms("host") == pytest.approx(0.56, abs=0.02)
    names = {finding.rule for finding in apply_rules(one, [*explaining, rule("z", 0.2, fallback=True)])}
    assert ("z" in names) is general


def test_a_framework_without_advice_gets_none() -> None:
    def patched(one: RuleContext) -> list[Finding]:
        return [found(30, patch=Patch("a.py", 1, "a", "b"))]

    (other,) = apply_rules(context(framework="mx"), [Rule(patched)])
    assert (other.advice, other.patch) == (
        "The trace is of mx; stepscope has advice for PyTorch and JAX only.",
        None,
    )
    (known,) = apply_rules(context(framework="pytorch"), [Rule(patched)])
    assert (known.advice, known.patch) == ("Do.", Patch("a.py", 1, "a", "b"))


def test_what_is_shown_above_the_findings() -> None:
    three = "\n".join(
        f"main | {at} {at + us} | ProfilerStep#{n}"
        for n, (at, us) in enumerate(((0, 5000), (5000, 1000), (6000, 1000)))
    )
    one = context(three, source="run.json", framework="pytorch")
    analysis = analysis_of(one, [Rule(lambda one: [])])
    assert analysis.heading == Heading(
        "run.json",
        1,
        excludes_warm_up=True,
        notes=analysis.heading.notes,
        steps=one.measures.summary.steps,
        step_ms=1.0,
        steady_ms=1.0,
    )
    assert (analysis.findings, analysis.together) == ((), None)
    device = analysis_of(context(source="a", devices=A100), [rule("a", 0.1, 0.2), rule("b", 0.3)])
    assert (device.heading.excludes_warm_up, device.heading.rules, len(device.findings)) == (False, 2, 3)
    jax, other = (analysis_of(context(framework=name), []).heading for name in ("jax", "mx"))
    assert (jax.without_lines, other.without_lines, device.heading.without_lines) == (True, True, False)
    assert (jax.unit, jax.of_tree, jax.rank, jax.job) == ("step", "", 0, None)


@pytest.mark.parametrize(
    ("busy_us", "wait"), [(600, "The device computes or copies 60% of the step, idles 40%."), (990, "")]
)
def test_a_wait_that_the_report_names_is_an_issue_though_no_rule_explains_it(busy_us: int, wait: str) -> None:
    kernels = f"main | 0 1000 | ProfilerStep#0\nstream 7 | 0 {busy_us} | gemm"
    assert analysis_of(context(kernels), []).heading.wait.startswith(wait)
    assert bool(analysis_of(context(kernels), []).heading.wait) == bool(wait)


def test_fixes_are_simulated_together() -> None:
    text = repeated(DEVICE + "\nmain | 930 990 | aten::item\nmain | 10 12 | aten::sort")

    def both(one: RuleContext) -> Iterator[Finding]:
        for name in ("aten::sort", "aten::item"):
            rows = one.search.find(name)
            yield one.finding("What.", "Do.", rows, one.gains.scaled(rows, 0.0), limit="warning")

    analysis = analysis_of(context(text), [Rule(both)])
    assert analysis.together is None  # of one cause, they are one group
    apart = [Rule(lambda one, at=at: [list(both(one))[at]], cause=f"{at}") for at in (0, 1)]
    for number, one in enumerate(apart):
        one.function.__name__ = f"rule_{number}"
    together = analysis_of(context(text), apart).together
    assert together is not None
    assert together.ms == pytest.approx(0.26, abs=0.01)


def test_an_analysis_as_json() -> None:
    heading = Heading("a", 1, notes=("Note.",))
    assert Analysis(heading, (found(30),)).to_json() == {
        "steps": None,
        "findings": [found(30).to_json()],
        "notes": ["Note."],
    }
    job = JobFindings(2, 90.0, 1, (), ("Rank 1 is slow.",))
    of_job = Analysis(replace(heading, job=job, rank=1), ()).to_json()
    assert (of_job["job"], of_job["rank"], of_job["findings"]) == (job, 1, [])
    assert msgspec.to_builtins(Analysis(heading, ()).together) is None
