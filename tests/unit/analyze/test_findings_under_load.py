"""What other processes on the machine leave of a finding: as much as of the verdict."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from drawn_findings import found
from msgspec.structs import replace

from stepscope.analyze import Finding, Rule, RuleContext, apply_rules
from stepscope.analyze.finding import Place
from stepscope.facts.annotate import annotate
from stepscope.facts.summary.report_facts import summarize
from stepscope.graph import build_graph
from stepscope.models.whatif import CHANGES, parse_request, predict
from stepscope.testing import drawn_trace

PYTHON = "\n".join(
    f"main | {start} {start + 1000} | ProfilerStep#{step}\nmain | {start + 100} {start + 300} | aten::mm"
    for step, start in enumerate(range(0, 3000, 1000))
)
DEVICE = "\n".join(
    f"main | {start} {start + 1000} | ProfilerStep#{step}\n"
    f"main | {start + 10} {start + 20} | cudaLaunchKernel | corr={step + 1}\n"
    f"stream 7 | {start + 30} {start + 330} | sgemm_float32_a | corr={step + 1}"
    for step, start in enumerate(range(0, 3000, 1000))
)


def capture(core_share: float) -> dict[str, Any]:
    elapsed = 3_000_000
    times = {"median_ns": 1_000_000, "cpu_ns": round(core_share * 1_000_000)}
    queued = round((1 - core_share) * elapsed)
    return {"recorded_steps": {**times, "elapsed_ns": elapsed, "queued_ns": queued}}


@pytest.mark.parametrize(
    ("core_share", "severity", "certain", "least"),
    [
        (1.0, "critical", 1.0, 0.4),
        (0.9, "critical", 0.7 / 0.9 / 0.8, 0.4 * 0.7 / 0.9 / 0.8),
        (0.62, "critical", 0.42 / 0.62 / 0.8, 0.4 * 0.42 / 0.62 / 0.8),
        (0.51, "info", 0.0, 0.0),
    ],
)
def test_a_finding_is_no_more_certain_than_the_verdict(
    core_share: float, severity: str, certain: float, least: float
) -> None:
    finding = found("cpu_latency", PYTHON, capture=capture(core_share))
    assert finding is not None
    assert (finding.severity, finding.share) == (severity, pytest.approx(0.8))
    assert finding.certain == pytest.approx(certain)
    assert finding.gain.stated_ms == pytest.approx((least, 0.8))
    summary = summarize(annotate(drawn_trace(PYTHON, capture=capture(core_share))))
    assert (summary.verdict.bound_by == "unknown") == (severity == "info")


def later(**cpu_ns: int) -> dict[str, Any]:
    return {"parts": {name: {"cpu_ns": ns} for name, ns in cpu_ns.items()}}


@pytest.mark.parametrize(
    ("core_share", "python_ns", "stated"),
    [
        (0.62, 900_000, (0.4, 0.9, min(0.8 * 1.1 * 0.9 / 0.8, 1.0))),
        (0.15, 900_000, (0.4, 0.9, min(0.8 * 1.1 * 0.9 / 0.8, 1.0))),  # though nothing else is certain
        (0.15, 550_000, (0.4 * 0.55 / 0.8 / 1.1, 0.55, 0.8)),
    ],
)
def test_an_upper_bound_follows_the_cpu_time_of_later_steps(
    core_share: float, python_ns: int, stated: tuple[float, float, float]
) -> None:
    """Python between the stages: 80 % of the recorded steps, 90 or 55 % of CPU time after them."""
    parts = later(forward=1_000_000 - python_ns, rest=python_ns)
    finding = found("cpu_latency", PYTHON, capture={**capture(core_share), "unrecorded_steps": parts})
    assert finding is not None
    low, high = finding.gain.stated_ms
    assert (low, finding.gain.ms, high) == pytest.approx(stated)


@pytest.mark.parametrize(("elapsed_ns", "most"), [(None, 1.1 * 0.1), (20_000_000, 0.15)])
def test_a_range_ends_at_the_cpu_time_of_its_stages_unless_later_steps_wait(
    elapsed_ns: int | None, most: float
) -> None:
    """Forward: 20 % of the recorded steps, 10 % of the CPU time of those after them."""

    def rule(context: RuleContext) -> Iterator[Finding]:
        """The operators of the forward pass, all of which a fix removes."""
        gain = context.gains.bound(0.15, "most of it")
        yield context.finding("Slow.", "Be fast.", context.search.find("aten::mm"), gain)

    text = "".join(f"main | {at + 90} {at + 310} | stepscope.module: net\n" for at in (0, 1000, 2000))
    parts = later(forward=100_000, rest=900_000)
    waits = {"elapsed_ns": elapsed_ns, "queued_ns": 0, "cpu_ns": 1_000_000, "median_ns": 10_000_000}
    busy = {**capture(0.62), "unrecorded_steps": {**parts, **(waits if elapsed_ns else {})}}
    context = RuleContext(annotate(drawn_trace(text + PYTHON, capture=busy)))
    (finding,) = apply_rules(context, [Rule(rule)])
    assert finding.gain.stated_ms[1] == pytest.approx(most)


@pytest.mark.parametrize(("loss_ns", "most"), [(290_000, 0.15), (90_000, 1.1 * 0.1)])
def test_work_between_forward_and_backward_is_loss_for_the_recorder(loss_ns: int, most: float) -> None:
    """A queue of keys, which the trace has in no stage: 30 or 10 % of later steps with what is in none."""

    def rule(context: RuleContext) -> Iterator[Finding]:
        """A function in no stage, most of which a fix removes."""
        queue = Place("enqueue", "other", "", "moco.py", 44, "enqueue", 1.0, 0.2)
        yield context.finding_at("Slow.", "Be fast.", (queue,), context.gains.bound(0.15, "most of it"))

    parts = later(forward=990_000 - loss_ns, loss=loss_ns, rest=10_000)
    busy = {**capture(0.62), "unrecorded_steps": parts}
    (finding,) = apply_rules(RuleContext(annotate(drawn_trace(PYTHON, capture=busy))), [Rule(rule)])
    assert finding.gain.stated_ms[1] == pytest.approx(most)


def test_work_of_two_stages_may_take_as_much_as_both() -> None:
    """A loop with its backward pass: 40 % of later steps each; a trace of it elsewhere does not count."""

    def rule(context: RuleContext) -> Iterator[Finding]:
        """A loop, most of which a fix removes."""
        times = {"forward": 0.5, "backward": 0.4, "data_loading": 0.001}
        loop = tuple(Place("loop", name, "", "maml.py", 7, "", 1.0, ms) for name, ms in times.items())
        yield context.finding_at("Slow.", "Be fast.", loop, context.gains.bound(0.95, "most of it"))

    parts = later(data_loading=100_000, forward=400_000, backward=400_000, rest=100_000)
    busy = {**capture(0.62), "unrecorded_steps": parts}
    (finding,) = apply_rules(RuleContext(annotate(drawn_trace(PYTHON, capture=busy))), [Rule(rule)])
    assert finding.gain.stated_ms[1] == pytest.approx(1.1 * 0.8)


@pytest.mark.parametrize(
    ("range_ms", "core_share", "stated"),
    [
        (None, 1.0, (0.0, 0.8)),
        (None, 0.9, (0.0, 0.8)),  # at most 0.8 ms, and a busy machine makes that no surer
        ((0.8, 0.8), 0.9, (0.0, 0.8)),
        ((0.6, 0.9), 1.0, (0.6, 0.9)),
        ((0.6, 0.9), 0.9, (0.6 * 0.7 / 0.9 / 0.8, 0.9)),
        ((0.6, 0.9), 0.15, (0.0, 0.9)),
    ],
)
def test_a_busy_machine_only_lowers_what_a_fix_saves_at_least(
    range_ms: tuple[float, float] | None, core_share: float, stated: tuple[float, float]
) -> None:
    def rule(context: RuleContext) -> Iterator[Finding]:
        """The operators, with a gain of that range."""
        gain = replace(context.gains.bound(0.8, "all of it"), range_ms=range_ms)
        yield context.finding("Slow.", "Be fast.", context.search.find("aten::mm"), gain)

    context = RuleContext(annotate(drawn_trace(PYTHON, capture=capture(core_share))))
    (finding,) = apply_rules(context, [Rule(rule)])
    assert finding.gain.stated_ms == pytest.approx(stated)


@pytest.mark.parametrize(("core_share", "says"), [(1.0, False), (0.51, True)])
def test_a_prediction_says_that_the_machine_was_busy(core_share: float, says: bool) -> None:
    trace = annotate(drawn_trace(PYTHON, capture=capture(core_share)))
    change = "scale:select=name=aten::mm,factor=0.5"
    answer = predict(build_graph(trace), [parse_request(change, CHANGES)])
    assert any("this process got 51% of a core" in text for text in answer.assumptions) == says


@pytest.mark.parametrize(
    ("us", "lost", "severity", "bound_by"),
    [
        (600, False, "critical", "synchronization"),
        (600, True, "info", "unknown"),
        (900, True, "critical", "device"),  # which is busy whatever else it does
    ],
)
def test_nothing_is_certain_where_the_verdict_is_withheld(
    us: int, lost: bool, severity: str, bound_by: str
) -> None:
    """What a kernel takes is known, and not what it would save beside work that may take as long."""
    text = re.sub(r"330 \| sgemm_float32_a", f"{us + 30} | sort_kernel", DEVICE)
    for step in range(3):
        text += f"\nmain | {1000 * step + 22} {1000 * step + 24} | cudaLaunchKernel | corr={step + 11}" * lost
        text += f"\nmain | {1000 * step + 30} {1000 * step + 990} | cudaDeviceSynchronize"
    finding = found("hotspot", text)
    assert finding is not None
    assert (finding.severity, finding.gain.stated_ms[0]) == (severity, 0.0)
    assert summarize(annotate(drawn_trace(text))).verdict.bound_by == bound_by


@pytest.mark.parametrize(("on_device", "certain"), [(True, 1.0), (False, 0.0)])
def test_device_work_takes_no_longer_on_a_busy_machine(on_device: bool, certain: float) -> None:
    def rule(context: RuleContext) -> Iterator[Finding]:
        """Whatever runs there."""
        rows = context.search.find(r"cudaLaunchKernel|sgemm", on_device=on_device)
        yield context.finding("Slow.", "Be fast.", rows, context.gains.bound(0.3, "all of it"))

    context = RuleContext(annotate(drawn_trace(DEVICE, capture=capture(0.4))))
    (finding,) = apply_rules(context, [Rule(rule)])
    assert finding.certain == certain
