"""Rules on a job, given the comparison of its ranks: slow ranks, pipelines, waits in collectives."""

from __future__ import annotations

from typing import Any

import pytest
from drawn_findings import BY_NAME, told

from stepscope.analyze import Finding, RuleContext, apply_rules
from stepscope.facts.annotate import annotate
from stepscope.models.ranks import Straggler
from stepscope.models.ranks.job import JobReport
from stepscope.models.ranks.pipeline import Pipeline
from stepscope.models.ranks.process_groups import GroupRow
from stepscope.testing import drawn_trace
from stepscope.trace.concat import concat, of_rank

RANK = """
    main | 0 1000 | ProfilerStep#0
    main | 5 100 | enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__
    main | 100 300 | aten::mm | seq=1
    main | 110 200 | aten::empty
    main | 310 400 | autograd::engine::evaluate_function: MmBackward0 | seq=1 fwd=1
    {gloo}
    main | 910 950 | Optimizer.step#SGD.step
"""
GLOO = "gloo | 400 900 | gloo:all_reduce"
GROUPS = (GroupRow(*[None] * len(GroupRow.__struct_fields__)),)  # type: ignore[arg-type]


def slow(stage: str, cost_ms: float, *ranks: int, **facts: Any) -> Straggler:
    return Straggler(ranks or (1,), "", stage, None, 1.0, 0.5, f"cause of {stage}", cost_ms, **facts)


def job(
    *stragglers: Straggler, groups: tuple[GroupRow, ...] = GROUPS, pipeline: Pipeline | None = None
) -> JobReport:
    return JobReport(2, 1, 1.0, 0.5, 0.5, (), stragglers, groups, pipeline=pipeline)


def found(rule: str, report: JobReport, *gloo: str) -> list[Finding]:
    ranks = [
        of_rank(annotate(drawn_trace(RANK.format(gloo=one))), n) for n, one in enumerate(gloo or (GLOO, GLOO))
    ]
    return apply_rules(RuleContext(concat(ranks), None, report), [BY_NAME[rule]])


def test_a_slow_rank_with_all_its_stages_the_most_expensive_first() -> None:
    stragglers = (
        slow("forward", 0.04),
        slow("data_loading", 0.06),
        slow("forward", 0.5, 0, groups=("world",)),
    )
    assert told(found("straggling_rank", job(*stragglers))) == STRAGGLING


STRAGGLING = """
Rank 1: data loading 50% longer in every step.
Cause of data_loading.
Rank 1: forward 50% longer in every step.
Cause of forward.
-> Find what makes its batches late: an uneven shard, a slow disk, fewer workers.
warning: 0.1 of 1 ms, 0 to 0.1
simulated, if it worked no longer than the median rank
* enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__ × 1, 0.095 ms, data_loading
""".strip()


@pytest.mark.parametrize(
    ("stage", "advice", "evidence"),
    [
        (
            "data_loading",
            "Find what makes its batches late",
            ["enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"],
        ),
        ("host", "Find what else its CPU does", ["gloo:all_reduce"]),
        ("backward", "Find its extra work", ["autograd::engine::evaluate_function: MmBackward0"]),
        ("forward", "Find its extra work", ["aten::mm"]),
    ],
)
def test_advice_and_evidence_are_of_the_stage(stage: str, advice: str, evidence: list[str]) -> None:
    (finding,) = found("straggling_rank", job(slow(stage, 0.2)))
    assert finding.advice.startswith(advice)
    assert finding.advice.endswith("See the findings of rank 1.")
    assert [place.name for place in finding.evidence] == evidence
    assert (finding.gain.ms, finding.gain.note) == (
        0.2,
        "simulated, if it worked no longer than the median rank",
    )


def test_without_recorded_waits_anything_of_another_rank_is_evidence() -> None:
    (finding,) = found("straggling_rank", job(slow("host", 0.2)), "", GLOO)
    assert "aten::mm" in [place.name for place in finding.evidence]
    assert "gloo:all_reduce" not in [place.name for place in finding.evidence]


@pytest.mark.parametrize(
    ("report", "number"),
    [
        (job(slow("forward", 0.05)), 1),
        (job(slow("forward", 0.0499)), 0),
        (job(slow("forward", 0.025), slow("backward", 0.025)), 1),
        (job(slow("forward", 0.2), groups=()), 0),
        (job(slow("forward", 0.2), slow("forward", 0.1, 0)), 2),
        (job(slow("communication", 0.2, groups=("world",))), 0),
        (job(), 0),
    ],
)
def test_ranks_that_cost_5_percent_of_the_step(report: JobReport, number: int) -> None:
    assert len(found("straggling_rank", report)) == number


def pipeline(*stage_ms: float, micro_batches: int = 2) -> Pipeline:
    plain = Pipeline(1, micro_batches, stage_ms, 0.0)
    mean = sum(stage_ms) / len(stage_ms)
    return Pipeline(1, micro_batches, stage_ms, 1 - mean / plain.step_ms(micro_batches))


def test_a_pipeline_with_few_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the sentence is that of `stepscope ranks`, longer than a title
    assert told(found("pipeline_bubble", job(pipeline=pipeline(0.3, 0.3)))) == BUBBLE
    assert told(found("pipeline_bubble", job(pipeline=pipeline(0.1, 0.5, micro_batches=8)))) == UNEVEN


BUBBLE = """
Pipeline of 2 stages, 2 micro-batches per step: each stage waits 33% of the step for the
others (bubble).
-> Split the batch into more micro-batches: n_microbatches=4 saves at most 0.07 ms per
step, if small ones compute as fast.
warning: 0.075 of 1 ms, 0 to 0.075
at most: with more micro-batches or even stages, whichever saves more
* gloo:all_reduce × 1, 0.5 ms, other
""".strip()
UNEVEN = """
Pipeline of 2 stages, 8 micro-batches per step: each stage waits 41% of the step for the
others (bubble); the stages are uneven, stage 1 works 1.7 times the mean.
-> Move layers to the other stages: even ones save 0.17 ms.
warning: 0.175 of 1 ms, 0 to 0.175
at most: with more micro-batches or even stages, whichever saves more
* gloo:all_reduce × 1, 0.5 ms, other
""".strip()


@pytest.mark.parametrize(
    ("report", "gloo", "number"),
    [
        (job(), GLOO, 0),
        (job(pipeline=pipeline(0.3, 0.3)), "", 0),  # they do not communicate
        (job(pipeline=pipeline(0.02, 0.02)), GLOO, 0),  # below 5 % of the step
        (job(pipeline=Pipeline(1, 2, (0.3, 0.3), 0.9)), GLOO, 0),  # other schedules
    ],
)
def test_other_jobs_have_no_bubble(report: JobReport, gloo: str, number: int) -> None:
    assert len(found("pipeline_bubble", report, gloo, gloo)) == number


LATE = "gloo | 890 900 | gloo:all_reduce"


@pytest.mark.parametrize(
    ("report", "says"),
    [
        (job(), "It is mostly waiting for other ranks."),
        (job(pipeline=pipeline(0.3, 0.3)), ""),  # whose stages have to wait
    ],
)
def test_a_rank_that_waits_for_another_one_in_a_collective(report: JobReport, says: str) -> None:
    """Rank 1 comes at 890 us, so that collectives without cost save 10 of 500 us."""
    findings = found("exposed_communication", report, GLOO, LATE)
    if not says:
        assert not [one for one in findings if "waiting" in one.what]
        return
    (finding,) = findings
    assert finding.what.endswith(says)
    assert finding.advice.startswith("Make the ranks equally fast in every step")
    assert finding.gain.ms < 0.05 * 0.5


def test_a_collective_that_is_slow_itself() -> None:
    (finding,) = found("exposed_communication", job())
    assert "waiting" not in finding.what
    assert finding.advice.startswith("Most of it is small calls outside of backward")
    assert finding.gain.ms == pytest.approx(0.5, abs=0.02)
