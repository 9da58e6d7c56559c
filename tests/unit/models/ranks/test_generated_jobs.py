"""Jobs generated from a recorded one: planted faults are found, and sketches match their files."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tiers import family

from stepscope.models.ranks import job_report, sketch_files
from stepscope.models.ranks.files import files_at


@cache
def step():
    from generated_jobs.template import template

    return template("dlrm", 8)


@cache
def healthy_steps_ns():
    from generated_jobs.job import Job

    return np.diff(Job("dlrm", step(), 64, 30, ()).run.begin).mean()


KINDS = [
    "healthy",
    "slow_node",
    "loader_stall",
    "slow_link",
    "gc_pauses",
    "two_faults",
    "slow_device",
    "imbalanced_expert",
    "slow_in_the_middle",
    "throttling",
    "throttled_node",
    "pauses_of_one",
    "slow_storage",
    "slow_cpu",
    "brief_hiccups",
    "half_of_the_nodes",
]


@pytest.mark.parametrize("kind", family(KINDS, len(KINDS), unit=6))
def test_each_planted_fault_is_named(kind: str, traces: Path) -> None:
    from generated_jobs.faults import faults
    from generated_jobs.job import Job
    from generated_jobs.score import score
    from generated_jobs.sketches import sketches

    planted = faults(kind, 1, 64, (8, 20))
    job = Job("dlrm", step(), 64, 30, planted)
    report = job_report(sketches(job))
    judged = score(planted, report.stragglers, job.steps)
    expected = kind not in ("healthy", "brief_hiccups")  # what happens once is chance
    assert (judged.found, judged.cause, judged.wrong) == (expected, expected, 0)
    if kind in ("slow_node", "slow_link"):  # a link is between two machines
        assert {bool(one.node) for one in report.stragglers} == {kind == "slow_node"}
    gain = np.diff(job.run.begin).mean() - healthy_steps_ns()
    # All ranks of the healthy job work as long as the median rank, but for noise.
    if expected:
        assert report.together_ms == pytest.approx(gain / 1e6, rel=0.06, abs=0.05)


@pytest.mark.main
@pytest.mark.parametrize("kind", ["loader_stall", "slow_storage"])
def test_what_comes_and_goes_costs_the_same_where_few_steps_are_replayed(
    kind: str, traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from generated_jobs.faults import faults
    from generated_jobs.job import Job
    from generated_jobs.sketches import sketches

    made = sketches(Job("dlrm", step(), 32, 48, faults(kind, 1, 32), 0.003))
    whole = job_report(made)
    calls = len(made[0].calls.columns().step) / 48
    monkeypatch.setattr("stepscope.models.ranks.replay._MOST_CALLS", int(4 * calls * len(made)))
    few = job_report(made)
    for name in ("together_ms", "replayed_ms"):
        assert getattr(few, name) == pytest.approx(getattr(whole, name), rel=0.03), name
    assert few.whatifs == pytest.approx(whole.whatifs, rel=0.03)
    assert few.whatifs.keys() == {"no_straggler", "bandwidth:factor=2"}


def test_sketches_of_files_are_those_of_the_generator(tmp_path: Path, traces: Path) -> None:
    from generated_jobs.faults import faults
    from generated_jobs.files import write_job
    from generated_jobs.job import Job
    from generated_jobs.sketches import sketches

    job = Job("dlrm", step(), 2, 3, faults("slow_device", 0, 2))
    found = [one.sketch for one in sketch_files(files_at(write_job(job, tmp_path / "job")))]
    for of_file, drawn in zip(found, sketches(job), strict=True):
        assert of_file is not None
        assert of_file.length == pytest.approx(drawn.length, rel=1e-4)
        for stage in ("forward", "backward", "data_loading", "host"):
            assert of_file.work[stage] == pytest.approx(drawn.work[stage], rel=1e-3)
        both = (of_file.calls.columns(), drawn.calls.columns())
        for name in ("start_ns", "duration_ns", "sent", "received", "step"):
            first, second = (getattr(columns, name) for columns in both)
            assert first.tolist() == pytest.approx(second.tolist(), abs=10)


@pytest.mark.main
def test_a_slow_device_in_files_is_not_taken_for_a_slow_machine(tmp_path: Path, traces: Path) -> None:
    """Ranks that wait long have less idle time that is called host bound: it runs out meanwhile."""
    from generated_jobs.faults import faults
    from generated_jobs.files import write_job
    from generated_jobs.job import Job

    job = Job("dlrm", step(), 8, 5, faults("slow_device", 0, 8))
    results = sketch_files(files_at(write_job(job, tmp_path / "job")))
    report = job_report([one.sketch for one in results if one.sketch])
    assert [one.ranks for one in report.stragglers] == [(3,)]
    assert "Slower device (all kernels alike)" in report.stragglers[0].sentence
    assert "host" not in report.stragglers[0].stages


@pytest.mark.main
def test_a_stall_in_files_costs_what_the_job_gains_without_it(tmp_path: Path, traces: Path) -> None:
    """Ranks that wait for others do so at other places: what each does until its next call is alike."""
    from generated_jobs.faults import faults
    from generated_jobs.files import write_job
    from generated_jobs.job import Job

    job = Job("dlrm", step(), 8, 5, faults("loader_stall", 0, 8, (1, 3)))
    results = sketch_files(files_at(write_job(job, tmp_path / "job")))
    report = job_report([one.sketch for one in results if one.sketch])
    gain = np.diff(job.run.begin).mean() - np.diff(Job("dlrm", step(), 8, 5).run.begin).mean()
    assert report.together_ms == pytest.approx(1e-6 * gain, abs=0.01 * report.step_ms)
