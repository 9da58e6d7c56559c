"""Stages of a pipeline are no stragglers: generated jobs whose step is known by construction."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from pipelined_job import Job

from stepscope.models.ranks import JobReport, Sketch, job_report, sketch_files
from stepscope.models.ranks.job import Job as Ranks
from stepscope.models.ranks.replay_whatifs import whatifs


def sketches_of(job: Job, folder: Path) -> list[Sketch]:
    files = sorted(job.write(folder / "job").iterdir())
    return [one.sketch for one in sketch_files(files) if one.sketch]


def report_of(job: Job, folder: Path) -> JobReport:
    return job_report(sketches_of(job, folder))


def without_peers(sketch: Sketch) -> Sketch:
    """As Gloo records sends and receives."""
    kinds = [
        msgspec.structs.replace(kind, kind=f"gloo:{kind.kind}", peer=-1) if kind.peer >= 0 else kind
        for kind in sketch.calls.kinds
    ]
    return msgspec.structs.replace(sketch, calls=msgspec.structs.replace(sketch.calls, kinds=kinds))


def heavy_last(rank: int, batch: int) -> float:
    """Stage 1 of 2 has three quarters of the layers."""
    return 3000.0 if rank % 2 == 1 else 1000.0


def test_with_one_micro_batch_no_stage_is_slow_and_more_micro_batches_help(tmp_path: Path) -> None:
    job = Job(replicas=1, stages=2, batches=1, compute_us=heavy_last, reduce_us=1.0)
    report = report_of(job, tmp_path)
    assert report.stragglers == ()
    pipeline = report.pipeline
    assert pipeline is not None
    assert (pipeline.micro_batches, pipeline.advised, len(pipeline.stage_ms)) == (1, 4, 2)
    assert pipeline.sentence.startswith("Pipeline of 2 stages, 1 micro-batch per step: each stage waits 4")
    assert "stage 1 works 1.5 times the mean" in pipeline.sentence
    assert pipeline.advice.startswith("Split the batch into more micro-batches: n_microbatches=4")
    assert "Move layers" not in pipeline.advice  # stages one after the other take as long in sum
    ranks = Ranks.of(sketches_of(job, tmp_path))
    assert whatifs(ranks.table, ranks.replay)["no_straggler"] == pytest.approx(report.replayed_ms)
    assert report.slowdown is None  # nor does any imbalance cost something


def test_what_more_micro_batches_save(tmp_path: Path) -> None:
    """The same work in four micro-batches, each a fourth as long; transfers take no time."""
    quick = {"replicas": 1, "stages": 2, "reduce_us": 1.0, "transfer_us": lambda *_: 1.0}
    once = Job(batches=1, compute_us=heavy_last, **quick)
    four = Job(batches=4, compute_us=lambda rank, _: heavy_last(rank, 0) / 4, **quick)
    pipeline = report_of(once, tmp_path).pipeline
    assert pipeline is not None
    saved_ms = (once.step_us - four.step_us) / 1000  # the update is not split
    assert 0.7 * pipeline.saved_by_more_ms < saved_ms <= pipeline.saved_by_more_ms


@pytest.mark.parametrize(
    ("stages", "chunks"), [(4, 1), (4, 2), (3, 2), (4, 3), (2, 1), (2, 2), (2, 3), (2, 4)]
)
def test_a_micro_batch_counts_once_however_many_chunks_it_passes(
    stages: int, chunks: int, tmp_path: Path
) -> None:
    """A step takes so many micro-batches, and of the others' work as much as fills the first chunks."""
    job = Job(
        replicas=1,
        stages=stages,
        batches=2 * stages,
        chunks=chunks,
        reduce_us=1.0,
        transfer_us=lambda *_: 1.0,
    )
    pipeline = report_of(job, tmp_path).pipeline
    assert pipeline is not None
    assert (pipeline.micro_batches, pipeline.chunks) == (2 * stages, chunks)
    assert (f"in {chunks} chunks" in pipeline.sentence) == (chunks > 1)
    assert pipeline.step_ms(pipeline.micro_batches) == pytest.approx(job.step_us / 1000, rel=0.05)


def test_of_two_stages_whose_passes_nothing_shows_micro_batches_have_a_bound(tmp_path: Path) -> None:
    """Each sends passes of both directions to the other: 12 times for 4 micro-batches in 2 chunks."""
    job = Job(replicas=1, stages=2, batches=4, chunks=2, evidence="none")
    pipeline = report_of(job, tmp_path).pipeline
    assert pipeline is not None
    assert pipeline.sentence.startswith("Pipeline of 2 stages, at most 12 micro-batches per step")


@pytest.mark.parametrize("stages", [2, 4])
def test_uneven_stages_are_named_with_what_even_ones_save(stages: int, tmp_path: Path) -> None:
    last = stages - 1
    uneven = Job(
        replicas=1,
        stages=stages,
        compute_us=lambda rank, _: 2000.0 if rank == last else 1000.0,
        reduce_us=1.0,
    )
    even = Job(replicas=1, stages=stages, compute_us=lambda *_: 1000.0 + 1000 / stages, reduce_us=1.0)
    report = report_of(uneven, tmp_path)
    (only,) = report.stragglers
    assert only.ranks == (last,)
    assert only.cause == f"all of pipeline stage {last}: the stages are out of balance"
    assert only.cost_ms == pytest.approx((uneven.step_us - even.step_us) / 1000, rel=0.05)
    assert report.pipeline is not None
    assert report.pipeline.advice.startswith("Move layers to the other stages")


@pytest.mark.parametrize("known", [True, False], ids=["peers recorded", "peers inferred"])
@pytest.mark.parametrize("batches", [1, 8])
def test_a_slow_rank_is_slower_than_the_others_of_its_stage(
    batches: int, known: bool, tmp_path: Path
) -> None:
    """The stages differ by far more than this rank from its peers."""
    lengths = [600.0, 1000.0, 1000.0, 2000.0]

    def compute(rank: int, batch: int) -> float:
        return lengths[rank % 4] * (1.4 if rank == 8 else 1.0)

    sketches = sketches_of(Job(batches=batches, compute_us=compute), tmp_path)
    report = job_report(sketches if known else [without_peers(one) for one in sketches])
    ranks = [one.ranks for one in report.stragglers]
    assert (8,) in ranks
    assert set(ranks) <= {(8,), (3, 7, 11, 15)}
    slow = report.stragglers[ranks.index((8,))]
    assert slow.excess == pytest.approx(0.4, rel=0.1)


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("batches", [1, 4])
def test_peers_that_are_not_recorded_are_inferred(
    replicas: int, stages: int, batches: int, tmp_path: Path
) -> None:
    sketches = sketches_of(Job(replicas=replicas, stages=stages, batches=batches), tmp_path)
    recorded, inferred = job_report(sketches), job_report([without_peers(one) for one in sketches])
    assert inferred.pipeline == recorded.pipeline
    assert inferred.replayed_ms == pytest.approx(recorded.replayed_ms, rel=0.01)
    assert inferred.stragglers == ()


def test_ranks_that_do_not_send_are_no_pipeline(tmp_path: Path) -> None:
    report = report_of(Job(replicas=4, stages=1), tmp_path)
    assert report.pipeline is None
