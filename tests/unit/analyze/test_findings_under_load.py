"""What other processes on the machine leave of a finding: as much as of the verdict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from drawn_findings import found

from stepscope.analyze import Finding, Rule, RuleContext, apply_rules
from stepscope.annotate import annotate
from stepscope.graph import build_graph
from stepscope.summary.report_facts import summarize
from stepscope.testing import drawn_trace
from stepscope.whatif import CHANGES, parse_request, predict

PYTHON = "\n".join(
    f"main | {start} {start + 1000} | ProfilerStep#{step}\n"
    f"main | {start + 100} {start + 300} | aten::mm"
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
    ("core_share", "severity", "least_ms"),
    [(1.0, "critical", None), (0.9, "critical", 7 / 9), (0.62, "critical", 0.42 / 0.62),
     (0.51, "info", 0.0)],
)  # fmt: skip
def test_a_finding_is_no_more_certain_than_the_verdict(
    core_share: float, severity: str, least_ms: float | None
) -> None:
    finding = found("cpu_latency", PYTHON, capture=capture(core_share))
    assert finding is not None
    assert (finding.severity, finding.share) == (severity, pytest.approx(0.8))
    if least_ms is not None:
        low, high = finding.gain.range_ms or (None, None)
        assert high == pytest.approx(0.8)
        assert low == pytest.approx(least_ms)
    summary = summarize(annotate(drawn_trace(PYTHON, capture=capture(core_share))))
    assert (summary.verdict.bound_by == "unknown") == (severity == "info")


@pytest.mark.parametrize(("core_share", "says"), [(1.0, False), (0.51, True)])
def test_a_prediction_says_that_the_machine_was_busy(core_share: float, says: bool) -> None:
    trace = annotate(drawn_trace(PYTHON, capture=capture(core_share)))
    change = "scale:select=name=aten::mm,factor=0.5"
    answer = predict(build_graph(trace), [parse_request(change, CHANGES)])
    assert any("this process got 51% of a core" in text for text in answer.assumptions) == says


@pytest.mark.parametrize(("on_device", "certain"), [(True, 1.0), (False, 0.0)])
def test_device_work_takes_no_longer_on_a_busy_machine(on_device: bool, certain: float) -> None:
    def rule(context: RuleContext) -> Iterator[Finding]:
        """Whatever runs there."""
        rows = context.find(r"cudaLaunchKernel|sgemm", on_device=on_device)
        yield context.finding("Slow.", "Be fast.", rows, context.bound(0.3, "all of it"))

    context = RuleContext(annotate(drawn_trace(DEVICE, capture=capture(0.4))))
    (finding,) = apply_rules(context, [Rule(rule)])
    assert finding.certain == certain
