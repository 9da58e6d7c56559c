"""Jobs of few ranks and few steps: short faults, half of the ranks, pauses, and noise alone."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tiers import family

from stepscope.models.ranks import JobReport, Sketch, job_report
from stepscope.models.ranks.map_ranks import sketch_files
from stepscope.models.ranks.slow_groups import is_no_chance, pausing_in_turn, peers_of, slow_steps
from stepscope.models.ranks.stragglers import other_processes

RANKS, STEPS = 16, 8
USUAL = {"data_loading": 1.0, "forward": 20.0, "host": 6.0}


def report(
    slow: np.ndarray, stage: str, extra_ms: float = 10.0, noise: float = 0.01, seed: int = 0
) -> JobReport:
    """A job of two machines in which ranks take longer in some steps; `slow` is (ranks, steps)."""
    dice = np.random.default_rng(seed)
    work = {name: each * dice.normal(1, noise, (RANKS, STEPS)) for name, each in USUAL.items()}
    work[stage] = work[stage] + extra_ms * slow
    own = np.sum(list(work.values()), axis=0)
    length = own.max(axis=0) + 3
    return job_report(
        [
            Sketch(
                rank=rank,
                node=f"node-{rank // 8}",
                device="A100",
                steps=list(range(STEPS)),
                length=length.tolist(),
                has_device=True,
                kernels={},
                work={name: values[rank].tolist() for name, values in work.items()},
                waiting=(length - own[rank]).tolist(),
            )
            for rank in range(RANKS)
        ]
    )


def drawn(*lines: str) -> np.ndarray:
    """Drawn steps, `#` for a slow one; a line for each of the first ranks."""
    rows = [*lines, *[""] * (RANKS - len(lines))]
    return np.array([[letter == "#" for letter in row.ljust(STEPS, ".")] for row in rows])


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ("...#....", "in step 3"),
        ("...#.##.", "in 3 of steps 3–6"),
        ("###...#.", "in 4 of steps 0–6"),
        ("..####..", "in steps 2–5"),
        ("#..#..#.", "in every 3rd step (0–6)"),
        ("########", "in every step"),
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_one_of_two_machines_is_half_of_the_job(steps: str, words: str, seed: int) -> None:
    found = report(drawn(*[steps] * 8), "data_loading", seed=seed)
    (only,) = found.stragglers
    assert (only.ranks, only.node, only.stage) == (tuple(range(8)), "node-0", "data_loading")
    assert words in only.sentence
    assert only.cost_ms == pytest.approx(10 * steps.count("#") / STEPS, rel=0.03, abs=0.1)


@pytest.mark.parametrize("seed", range(5))
def test_a_machine_is_named_where_the_noise_of_a_single_rank_hides_it(seed: int) -> None:
    """20 % longer, where each rank varies by 4 % and must exceed six times as much."""
    (only,) = report(drawn(*["#" * STEPS] * 8), "forward", 4, 0.04, seed).stragglers
    assert (only.ranks, only.steps) == (tuple(range(8)), None)


@pytest.mark.parametrize("seed", range(5))
def test_half_of_the_ranks_that_are_on_both_machines(seed: int) -> None:
    slow = drawn(*["..####..", ""] * 8)
    (found, *others) = report(slow, "data_loading", seed=seed).stragglers
    ranks = set(found.ranks).union(*(one.ranks for one in others))
    assert ranks == set(range(0, RANKS, 2))
    assert {one.steps for one in (found, *others)} == {(2, 5)}


def test_two_pauses_of_one_rank_are_named_and_one_is_chance() -> None:
    (only,) = report(drawn("", "", "", "#.....#."), "host").stragglers
    assert (only.ranks, only.steps, only.count) == ((3,), (0, 6), 2)
    assert report(drawn("", "", "", "......#."), "host").stragglers == ()


@pytest.mark.parametrize(
    "lines",
    [
        [".#..#..#", "", "..#", "...#", ".#..#", "", "", "....#", "", "", "", "......#", ".#...#"],
        ["", "", "", "#.....#.", "", "", "", "", "", "###.....", "", "", "....#", "", "", "#......#"],
    ],
    ids=["all ranks", "of which one three times in a row"],
)
def test_pauses_of_several_ranks_are_one_finding(lines: list[str]) -> None:
    slow = drawn(*lines)
    (only,) = report(slow, "host").stragglers
    assert only.in_turn
    assert only.ranks == tuple(np.flatnonzero(slow.any(axis=1)).tolist())


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("noise", [0.003, 0.02, 0.05])
def test_noise_alone_is_no_finding(seed: int, noise: float) -> None:
    assert report(drawn(), "forward", 0, noise, seed).stragglers == ()


@pytest.mark.parametrize("seed", range(20))
def test_rare_pauses_are_no_finding(seed: int) -> None:
    slow = np.random.default_rng(seed).random((RANKS, STEPS)) < 0.004
    assert report(slow, "host").stragglers == ()


def test_ranks_that_are_slow_together_do_not_pause_in_turn() -> None:
    together = drawn(*["..###..."] * 5)
    assert pausing_in_turn(together) == []
    steps = slow_steps(together[0])
    assert steps is not None
    assert is_no_chance(together, [0, 1, 2, 3, 4], steps, RANKS)


def test_a_rank_that_is_slow_far_more_often_does_not_pause_in_turn() -> None:
    slow = np.random.default_rng(0).random((60, 48)) < 0.06
    slow[7, 20:41] = True
    assert 7 not in pausing_in_turn(slow)
    assert len(pausing_in_turn(slow)) > 40


def test_ranks_are_compared_with_the_faster_half_of_each_step() -> None:
    values = np.full((8, 4), 10.0) + np.arange(8)[:, None] / 100
    values[4:, 2] += 5
    compared = peers_of(values, 20)
    assert compared[:, [0, 1, 3]].all()
    assert compared[:, 2].tolist() == [True] * 4 + [False] * 4


def two_ranks(*shares: float | None) -> list[Sketch]:
    """Two ranks with a share of a core each, of which the second takes 6 ms longer."""
    backward = ([10.0, 10.1, 9.9], [16.0, 16.2, 15.9])
    return [
        Sketch(
            rank=rank,
            node="",
            device="",
            steps=[0, 1, 2],
            length=[18.0] * 3,
            work={"backward": backward[rank]},
            waiting=[1.0] * 3,
            kernels={},
            core_share=share,
        )
        for rank, share in enumerate(shares)
    ]


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ((1.0, 0.6), "60% of a core, since others used its machine"),
        ((1.0, 0.98), ""),
        ((1.0, None), ""),
        # Alike on average, of which each step may have had any part.
        ((0.2, 0.2), "Its own work takes longer, or other processes took its core: it got 20% of one"),
    ],
)
def test_a_rank_that_other_processes_kept_from_its_core_says_so(
    shares: tuple[float | None, ...], words: str
) -> None:
    (only,) = job_report(two_ranks(*shares)).stragglers
    assert only.ranks == (1,)
    assert words in only.sentence
    assert (" core" in only.sentence) == bool(words)


def test_work_that_no_other_rank_has_is_not_that_of_other_processes() -> None:
    ranks = [
        Sketch(
            rank=rank,
            node="",
            device="",
            steps=[0],
            length=[18.0],
            work={},
            waiting=[1.0],
            kernels={},
            core_share=1.0 - 0.4 * rank,
        )
        for rank in range(2)
    ]
    assert other_processes(ranks, [1], 0.6)
    assert not other_processes(ranks, [1], 9.0)
    assert not other_processes(ranks, [1], float("inf"))


@cache
def step(name: str):
    from generated_jobs.template import template

    return template(name, 8 if name == "dlrm" else 1)


BY_NOISE = [range(2, 3), range(2), range(3, 6)]  # the most first


@pytest.mark.parametrize("name", family(["dlrm", "ddp"], 2, unit=1))
@pytest.mark.parametrize("seeds", family(BY_NOISE, 1), ids=str)
@pytest.mark.parametrize(
    "kind",
    [
        "slow_node",
        "throttled_node",
        "slow_storage",
        "node_storage",
        "gc_pauses",
        "gc_of_some",
        "pauses_of_one",
        "slow_nic",
        "slow_link",
        "throttles_midway",
        "loader_stall",
    ],
)
def test_faults_in_generated_jobs_of_eight_steps(kind: str, seeds: range, name: str, traces: Path) -> None:
    """All that were drawn are found, and cost what the job without them gains."""
    from generated_jobs.faults import faults
    from generated_jobs.job import Job
    from generated_jobs.score import score
    from generated_jobs.sketches import sketches

    if name == "ddp" and kind in ("gc_pauses", "gc_of_some", "pauses_of_one"):
        return  # its CPU is never late
    for seed in seeds:
        ranks = {"slow_link": 48, "slow_node": 24}.get(kind, 16)
        noise = (0.003, 0.01, 0.02)[seed % 3]
        job = Job(name, step(name), ranks, 8, faults(kind, seed, ranks, (2, 5)), noise, seed)
        healthy = Job(name, step(name), ranks, 8, (), noise, seed)
        found = job_report(sketches(job))
        judged = score(job.planted, found.stragglers, job.steps)
        assert (judged.found, judged.wrong) == (judged.planted, 0), (seed, found.stragglers)
        gain = (np.diff(job.run.begin).mean() - np.diff(healthy.run.begin).mean()) / 1e6
        if judged.planted:
            assert found.together_ms == pytest.approx(gain, abs=0.03 * found.step_ms)


@pytest.mark.parametrize(
    ("kind", "cause"), [("throttling", "as one that throttles"), ("throttles_midway", "as if its clock fell")]
)
def test_a_clock_that_falls_within_eight_steps_is_one_finding_from_there_on(
    kind: str, cause: str, traces: Path
) -> None:
    from generated_jobs.faults import faults
    from generated_jobs.job import Job
    from generated_jobs.sketches import sketches

    job = Job("dlrm", step("dlrm"), 16, 8, faults(kind, 0, 16, (2, 5)), 0.003, 0)
    (only,) = job_report(sketches(job)).stragglers
    assert (only.ranks, only.steps is not None and only.steps[1]) == ((3,), 7)
    assert only.cause == f"slower device (all kernels alike), {cause}{'' if only.grows else ' in the job'}"
    assert {"forward", "backward", "optimizer"} <= {*only.stages}


def test_several_recordings_of_a_process_are_no_ranks(tmp_path: Path) -> None:
    for number, begin_us in ((3, 1_000), (6, 2_000)):
        event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 7}
        text = json.dumps([{**event, "ts": begin_us, "dur": 10}])
        (tmp_path / f"trace_{number}.json").write_text(text)
    last, earlier = sketch_files(sorted(tmp_path.iterdir()))
    assert (Path(last.file).name, last.sketch and last.sketch.rank) == ("trace_6.json", 0)
    assert earlier.error == (
        f"{tmp_path}/trace_3.json: an earlier recording of the process that wrote trace_6.json; "
        "left out, since it is no other rank"
    )
