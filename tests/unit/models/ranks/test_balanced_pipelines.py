"""Two hundred generated pipelined jobs: imbalance and shares against a simulator of the tests' own."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lin import Oracle
from pipelined_job import COMPUTE, Job, Op
from rich.console import Console
from tiers import family

from stepscope.base.numbers import ms, percent
from stepscope.models.ranks import JobReport, job_report, sketch_files
from stepscope.models.ranks.job import findings_of
from stepscope.models.ranks.ranks_text import print_job

FAULTS = ("worker", "stage", "sequences", "link", "worker and stage")
SCHEDULES: tuple[dict[str, Any], ...] = ({}, {"chunks": 2}, {"zero_bubble": True})
EVIDENCE = ("names", "ranges", "none")
LEAST_SLOWDOWN = 1.03  # below, Lin et al. decompose nothing


def generated(number: int) -> Job:
    """The `number`-th job: each combination of a fault, a schedule and the evidence for passes."""
    dice = random.Random(number)
    fault, schedule = FAULTS[number % 5], SCHEDULES[number // 5 % 3]
    replicas, stages = dice.choice([(1, 4), (2, 2), (2, 3), (2, 4), (3, 2)])
    batches = stages * dice.choice([1, 2, 3])
    ranks = range(replicas * stages)
    slow, factor = dice.randrange(len(ranks)), dice.uniform(1.2, 2.5)
    heavy, more = dice.choice([0, stages - 1]), dice.uniform(1.1, 1.6)
    noise = {(rank, batch): dice.gauss(1, 0.02) for rank in ranks for batch in range(batches)}
    length = {(line, batch): dice.paretovariate(2.5) for line in range(replicas) for batch in range(batches)}

    def compute_us(rank: int, batch: int) -> float:
        work = 1000.0 * noise[rank, batch]
        work *= factor if "worker" in fault and rank == slow else 1.0
        work *= more if "stage" in fault and rank % stages == heavy else 1.0
        return work * (length[rank // stages, batch] if fault == "sequences" else 1.0)

    def transfer_us(source: int, target: int) -> float:
        ends = {slow, slow + 1 if slow % stages < stages - 1 else slow - 1}
        return 1000.0 * factor if fault == "link" and {source, target} == ends else 100.0

    return Job(
        replicas,
        stages,
        batches,
        compute_us=compute_us,
        transfer_us=transfer_us,
        kernels=lambda stage: 1 + stage % 2,
        reduce_us=500.0 if replicas > 1 else 1.0,
        evidence=EVIDENCE[number // 15 % 3],
        **schedule,
    )


def parts_of(job: Job) -> dict[tuple[str, str], Callable[[Op], bool]]:
    """What belongs to each part that a slowdown may name."""
    stages = job.stages
    parts: dict[tuple[str, str], Callable[[Op], bool]] = {}
    for rank in range(job.replicas * stages):
        parts["worker", str(rank)] = lambda op, rank=rank: op.rank == rank
        parts["pipeline stage", str(rank % stages)] = lambda op, own=rank % stages: op.rank % stages == own
        parts["data-parallel rank", str(rank // stages)] = lambda op, own=rank // stages: (
            op.rank // stages == own
        )
    parts["operation", "forward"] = lambda op: bool(op.number) and op.number.way == "forward"
    parts["operation", "backward"] = lambda op: bool(op.number) and op.number.way != "forward"
    parts["operation", "sendrecv"] = lambda op: "SendRecv" in op.name
    parts["operation", "allreduce"] = lambda op: "AllReduce" in op.name
    parts["operation", "compute"] = lambda op: op.stream == COMPUTE
    return parts


def report_of(job: Job, folder: Path) -> JobReport:
    files = sorted(job.write(folder / "job").iterdir())
    return job_report([one.sketch for one in sketch_files(files) if one.sketch])


@pytest.mark.parametrize(
    "number", family(sorted(range(200), key=lambda number: number % 19), 11, every=4, unit=5)
)
def test_imbalance_and_shares_are_those_of_the_oracle(number: int, tmp_path: Path) -> None:
    job = generated(number)
    oracle, report = Oracle(job), report_of(job, tmp_path)
    slowdown, pipeline = report.slowdown, report.pipeline
    assert slowdown
    assert pipeline
    if pipeline.is_most:
        assert (job.evidence, job.stages) == ("none", 2)
        assert pipeline.micro_batches >= job.batches
    else:
        assert (pipeline.micro_batches, pipeline.chunks) == (job.batches, job.chunks)
    assert slowdown.replayed_ms * 1000 == pytest.approx(oracle.step_us, rel=0.01)
    assert slowdown.ratio == pytest.approx(oracle.ratio, rel=0.05)
    if oracle.ratio < LEAST_SLOWDOWN:
        return
    parts = parts_of(job)
    shares = {(one.part, one.which): one.share for one in slowdown.shares}
    wrong = {
        part: (share, expected)
        for part, share in shares.items()
        if part in parts and abs(share - (expected := oracle.share(parts[part]))) > 0.05
    }
    assert wrong == {}


@pytest.mark.parametrize("evidence", EVIDENCE)
def test_kernels_of_passes_are_not_outside_of_the_stages(evidence: str, tmp_path: Path) -> None:
    job = Job(2, 2, 4, compute_us=lambda rank, _: 1500.0 if rank == 1 else 1000.0, evidence=evidence)
    report = report_of(job, tmp_path)
    stages = {"compute"} if evidence == "none" else {"forward", "backward"}
    assert stages <= report.rows[1].work_ms.keys()
    assert "outside of the stages" not in report.stragglers[0].sentence


def test_all_sentences_have_the_same_numbers(tmp_path: Path) -> None:
    """Of a slow rank and a heavy stage neither costs all that imbalance does, which both sentences say."""
    job = Job(compute_us=lambda rank, _: 1000.0 * (1.3 if rank % 4 == 3 else 1) * (1.6 if rank == 6 else 1))
    report = report_of(job, tmp_path)
    lost = report.slowdown
    assert lost
    share = percent(lost.lost_ms / lost.replayed_ms)
    assert findings_of(report).verdict.endswith(f"all imbalance {ms(lost.lost_ms)} ms, {share}.")
    console = Console(width=200, file=io.StringIO())
    print_job(console, report, [])
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert f"all imbalance {ms(lost.lost_ms)} ms, {share}" in text
    assert f"in balance {ms(lost.balanced_ms)} ms), which costs {share} of it" in text
