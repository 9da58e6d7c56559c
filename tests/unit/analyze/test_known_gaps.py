"""Idle time by cause: every answer divides it alike, and as the recording was made."""

from __future__ import annotations

import re

import pytest
from known_gaps import CAUSES, Once, Pen, gap_with_culprit, once_of, steps_with_gaps, windows

from stepscope.analyze import RULES, Finding, RuleContext, apply_rules
from stepscope.facts.summary.facts import Summary
from stepscope.facts.summary.report_facts import summarize
from stepscope.graph import build_graph
from stepscope.models.whatif.prediction import Baseline
from stepscope.models.whatif.ranking import rank_changes
from stepscope.trace.trace import Trace

CLEAR = 0.03  # of the step: causes that differ by less may be named in either order
EXACT = 0.02  # of the step


def check_causes(pen: Pen) -> tuple[Trace, Summary, dict[str, float]]:
    """The report's causes are those of the recording, and add up with the rest of the step."""
    trace = pen.trace()
    summary = summarize(trace)
    device, numbers = summary.devices[0], summary.steps.numbers
    truth = {cause: ms / len(numbers) for cause, ms in pen.truth(windows(trace, numbers)).items()}
    for cause in CAUSES:
        assert device.idle_ms[cause] == pytest.approx(truth[cause], abs=EXACT * device.window_ms), cause
    assert device.computing_ms + sum(device.idle_ms.values()) == pytest.approx(device.window_ms)
    return trace, summary, truth


def check_verdict(summary: Summary, truth: dict[str, float]) -> None:
    """The verdict names the cause of most idle time, if it is clear that there is one."""
    window = summary.devices[0].window_ms - summary.devices[0].one_off_ms
    shares = sorted((ms / window, cause) for cause, ms in truth.items() if cause != "one_off")
    (second, _), (most, cause) = shares[-2:]
    if most > 0.1 + CLEAR and most > second + CLEAR:
        assert summary.verdict.bound_by == cause, summary.verdict.sentence
    if most < 0.1 - CLEAR:
        assert summary.verdict.bound_by == "device", summary.verdict.sentence


def check_findings(trace: Trace, truth: dict[str, float]) -> list[Finding]:
    """No finding blames more idle time on a cause than there is."""
    context = RuleContext(trace)
    found = apply_rules(context, RULES)
    slack = EXACT * context.measures.step_ms
    for finding in found:
        if finding.rule == "python_stall":
            assert finding.gain.ms <= truth["host"] + slack
        if finding.rule == "input_bound":
            assert f"{context.measures.idle_share('data'):.0%} of the step" in finding.what
        if finding.rule == "idle_device":
            assert finding.gain.ms <= truth[context.measures.summary.verdict.bound_by] + slack
    return found


def check(pen: Pen) -> None:
    trace, summary, truth = check_causes(pen)
    check_verdict(summary, truth)
    check_findings(trace, truth)


@pytest.mark.parametrize("seed", range(4))
def test_a_gap_has_as_many_causes_as_moments(seed: int) -> None:
    for number in range(8):
        check(steps_with_gaps(100 * seed + number))


@pytest.mark.full
@pytest.mark.parametrize("seed", range(4, 14))
def test_a_gap_has_as_many_causes_as_moments_in_a_large_family(seed: int) -> None:
    for number in range(30):
        check(steps_with_gaps(100 * seed + number))


def check_once(seed: int, steps: int) -> None:
    """One-off costs change nothing but what is said of them."""
    pen = steps_with_gaps(seed, once_of(seed, steps), steps)
    trace, summary, truth = check_causes(pen)
    check_verdict(summary, truth)
    found = check_findings(trace, truth)
    without = steps_with_gaps(seed, recurring_of(seed, steps), steps).trace()
    check_alike(trace, without, found)


def recurring_of(seed: int, steps: int) -> Once:
    """The same without what is paid once."""
    return once_of(seed, steps, only_recurring=True)


def check_alike(trace: Trace, without: Trace, found: list[Finding]) -> None:
    """What is predicted and found is what it is without one-off costs."""
    graph = build_graph(trace)
    steps = graph.window.steps
    graphs = graph, build_graph(without, 0, (steps[0], steps[-1]))
    baseline, plain = map(Baseline, graphs)
    slack = EXACT * plain.measured_ms
    assert baseline.measured_ms == pytest.approx(plain.measured_ms, abs=slack)
    assert baseline.simulation.step_ns.mean() / 1e6 == pytest.approx(plain.measured_ms, abs=slack)
    gains, expected = (
        {one.changes: one.predicted_step_ms for one in rank_changes(graph).gains} for graph in graphs
    )
    for change in gains.keys() & expected.keys():
        assert gains[change] == pytest.approx(expected[change], abs=slack), change
    context = RuleContext(trace)
    assert context.measures.steady_ms == pytest.approx(plain.measured_ms, abs=slack)
    large = {one.rule for one in found if one.share > 0.1} - {"first_use"}
    rules = {one.rule for one in apply_rules(RuleContext(without), RULES)}
    assert large <= rules


@pytest.mark.parametrize("seed", range(4))
def test_one_off_costs_are_left_out_alike(seed: int) -> None:
    for number in range(8):
        check_once(100 * seed + number, [1, 3, 4, 5][number % 4])


@pytest.mark.full
@pytest.mark.parametrize("seed", range(4, 14))
def test_one_off_costs_are_left_out_alike_in_a_large_family(seed: int) -> None:
    for number in range(30):
        check_once(100 * seed + number, [1, 3, 4, 5][number % 4])


def check_culprit(seed: int) -> None:
    """What is blamed for idle time takes most of it, and where nothing does, that is said."""
    pen, name, share = gap_with_culprit(seed)
    trace, summary, truth = check_causes(pen)
    check_verdict(summary, truth)
    found = [one for one in check_findings(trace, truth) if one.rule in BLAMING]
    sentences = [one.what for one in found]
    short = name.rpartition(" ")[2]
    blamed = [text for text in sentences if re.search(rf"mostly in [^:]*{short}", text)]
    assert not any("train_step" in text or "ProfilerStep" in text for text in sentences), sentences
    if share < 0.5:
        assert not blamed, blamed
    idle = truth["host"] / summary.devices[0].window_ms
    if share > 0.5 and idle > 0.3:
        assert any(name == place.name for one in found for place in one.evidence), sentences


BLAMING = ("python_stall", "idle_device", "cpu_latency")


@pytest.mark.parametrize("seed", range(4))
def test_a_culprit_explains_what_it_is_blamed_for(seed: int) -> None:
    for number in range(8):
        check_culprit(100 * seed + number)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(4, 14))
def test_a_culprit_explains_what_it_is_blamed_for_in_a_large_family(seed: int) -> None:
    for number in range(30):
        check_culprit(100 * seed + number)
