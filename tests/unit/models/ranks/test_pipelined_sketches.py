"""Pipelined jobs replayed from sketches, and their slowdown decomposed; truth by construction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from pipelined_job import Job
from tiers import family

from stepscope.models.ranks import JobReport, job_report, sketch_files

pytestmark = pytest.mark.main  # generated jobs take seconds
Compute = Callable[[int, int], float]


def even(rank: int, batch: int) -> float:
    return 1000.0


def slow_worker(rank: int, batch: int) -> float:
    return 2500.0 if rank == 6 else 1000.0


def heavy_stage(rank: int, batch: int) -> float:
    return 1500.0 if rank % 4 == 2 else 1000.0


def varying(rank: int, batch: int) -> float:
    """Sequence lengths differ between micro-batches; all ranks do the same in sum."""
    return 600.0 + 100 * ((7 * batch + 3 * (rank // 4)) % 8)


def slow_link(source: int, target: int) -> float:
    return 2000.0 if {source, target} == {5, 6} else 100.0


def report_of(job: Job, folder: Path) -> JobReport:
    files = sorted(job.write(folder / "job").iterdir())
    return job_report([one.sketch for one in sketch_files(files) if one.sketch])


def mean(compute: Compute) -> Compute:
    values = [compute(rank, batch) for rank in range(16) for batch in range(8)]
    return lambda rank, batch: sum(values) / len(values)


SCHEDULES: dict[str, dict[str, Any]] = {
    "1F1B": {},
    "interleaved": {"chunks": 2},
    "zero-bubble": {"zero_bubble": True},
}


@dataclass(frozen=True)
class Case:
    """A job that is out of balance, and what is to be named.

    Attributes:
        job: what the job is like.
        balanced: what it is like in balance.
        alone: the same but for the part that is named.
        part, which: the part of the slowdown.
        ranks: the slow ranks; None for none.
    """

    job: dict[str, Any]
    balanced: dict[str, Any]
    alone: dict[str, Any]
    part: str
    which: str
    ranks: tuple[int, ...] | None


def only(compute: Compute, ranks: tuple[int, ...]) -> Compute:
    """These ranks as they are, the others in balance."""
    usual = mean(compute)
    return lambda rank, batch: (compute if rank in ranks else usual)(rank, batch)


def of_work(compute: Compute, part: str, which: str, ranks: tuple[int, ...] | None) -> Case:
    alone = compute if ranks is None else only(compute, ranks)
    works = [{"compute_us": one} for one in (compute, mean(compute), alone)]
    return Case(*works, part, which, ranks)


CASES = {
    "slow worker": of_work(slow_worker, "worker", "6", (6,)),
    "heavy stage": of_work(heavy_stage, "pipeline stage", "2", (2, 6, 10, 14)),
    "varying lengths": of_work(varying, "micro-batches", "", None),
    "slow link": Case(
        {"transfer_us": slow_link}, {}, {"transfer_us": slow_link}, "operation", "sendrecv", (5, 6)
    ),
}


FIRST = [*zip(CASES, [*SCHEDULES, "1F1B"], strict=True)]  # each case, and each schedule
OTHERS = [pair for pair in product(CASES, SCHEDULES) if pair not in FIRST]


@pytest.mark.parametrize("pair", family(FIRST + OTHERS, len(FIRST)), ids=", ".join)
def test_the_balanced_step_and_the_part_out_of_balance(pair: tuple[str, str], tmp_path: Path) -> None:
    case, passes = CASES[pair[0]], SCHEDULES[pair[1]]
    job, ideal, alone = (Job(**one, **passes).step_us / 1000 for one in (case.job, case.balanced, case.alone))
    report = report_of(Job(**case.job, **passes), tmp_path)
    lost = report.slowdown
    assert lost
    assert lost.replayed_ms == pytest.approx(job, rel=0.002)
    assert lost.balanced_ms == pytest.approx(ideal, rel=0.005)
    first = lost.shares[0]
    assert (first.part, first.which) == (case.part, case.which)
    assert first.share == pytest.approx((alone - ideal) / (job - ideal), rel=0.02)
    found = report.stragglers[0] if report.stragglers else None
    assert (found.ranks if found else None) == case.ranks
    if found:
        # The work of a stage can only move to the others.
        gain = job - (ideal if case.part == "pipeline stage" else Job(**passes).step_us / 1000)
        assert found.cost_ms == pytest.approx(gain, rel=0.01)


@pytest.mark.parametrize("schedule", family(SCHEDULES, 3, unit=1))
def test_a_job_in_balance_has_no_shares(schedule: str, tmp_path: Path) -> None:
    lost = report_of(Job(compute_us=even, **SCHEDULES[schedule]), tmp_path).slowdown
    assert lost
    assert (lost.shares, lost.ratio) == ((), pytest.approx(1, abs=0.002))


def test_only_the_most_uneven_pipelines_are_replayed_one_by_one(tmp_path: Path) -> None:
    job = Job(replicas=6, stages=2, compute_us=lambda rank, batch: 1000.0 + 150 * (rank // 2) ** 2)
    lost = report_of(job, tmp_path).slowdown
    assert lost
    pipelines = [one.which for one in lost.shares if one.part == "data-parallel rank"]
    assert pipelines[0] == "5"
    assert len(pipelines) <= 3


def test_one_pipeline_alone_is_no_part_of_itself(tmp_path: Path) -> None:
    job = Job(replicas=1, stages=3, compute_us=lambda rank, batch: 1000.0 + 500 * (rank == 1))
    lost = report_of(job, tmp_path).slowdown
    assert lost
    parts = {one.part for one in lost.shares}
    assert "pipeline stage" in parts
    assert "data-parallel rank" not in parts


def test_groups_are_shown_as_axes(tmp_path: Path) -> None:
    groups = report_of(Job(compute_us=slow_worker), tmp_path).groups
    assert {(one.kind, one.axis, one.groups, one.members) for one in groups} == {
        ("sendrecv", "pipeline", 24, 2),
        ("allreduce", "data", 4, 4),
    }
    transfers = {one.axis: one.transfer_ms for one in groups}
    assert transfers == {"pipeline": pytest.approx(0.1), "data": pytest.approx(0.5)}
    (pipeline,) = (one for one in groups if one.axis == "pipeline")
    assert pipeline.last_rank == 6
