"""Slow ranks of generated jobs whose truth is known."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest

from stepscope.facts.annotate import annotate
from stepscope.models.ranks import Sketch, job_report, sketch_of
from stepscope.models.ranks.job import findings_of
from stepscope.testing import drawn_trace
from stepscope.trace.concat import of_rank

STAGES = {"data_loading": 1.0, "forward": 20.0, "backward": 40.0, "optimizer": 5.0}
KERNELS = {"gemm": (100.0, 0.3), "softmax": (50.0, 0.1), "layernorm": (60.0, 0.08), "adam": (9.0, 0.5)}
Fault = Callable[[dict[int, dict[str, list[float]]], dict[int, dict[str, tuple[float, float]]]], None]


def job(
    seed: int,
    count: int = 16,
    steps: int = 60,
    fault: Fault = lambda work, kernels: None,
    noise: float = 0.01,
) -> list[Sketch]:
    """Ranks with step-to-step noise; a step lasts until the slowest rank has done its work."""
    chance = random.Random(seed)
    work = {
        rank: {
            stage: [usual * chance.gauss(1, noise) for _ in range(steps)] for stage, usual in STAGES.items()
        }
        for rank in range(count)
    }
    kernels = {rank: dict(KERNELS) for rank in range(count)}
    fault(work, kernels)
    own = {rank: [sum(parts) for parts in zip(*work[rank].values(), strict=True)] for rank in work}
    length = [max(own[rank][step] for rank in own) + 3 for step in range(steps)]
    return [
        Sketch(
            rank=rank,
            node=f"node-{rank // 8}",
            device="A100",
            steps=list(range(steps)),
            length=length,
            work=work[rank],
            waiting=[whole - mine for whole, mine in zip(length, own[rank], strict=True)],
            has_device=True,
            kernels=kernels[rank],
        )
        for rank in range(count)
    ]


def slower(ranks: list[int], stage: str, factor: float, steps: range | None = None) -> Fault:
    def plant(work: dict[int, dict[str, list[float]]], kernels: object) -> None:
        for rank in ranks:
            values = work[rank][stage]
            for step in steps or range(len(values)):
                values[step] *= factor

    return plant


def slow_device(ranks: list[int], factor: float) -> Fault:
    def plant(
        work: dict[int, dict[str, list[float]]], kernels: dict[int, dict[str, tuple[float, float]]]
    ) -> None:
        for rank in ranks:
            for stage in ("forward", "backward", "optimizer"):
                work[rank][stage] = [value * factor for value in work[rank][stage]]
            kernels[rank] = {name: (n, time * factor) for name, (n, time) in KERNELS.items()}

    return plant


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("noise", [0.002, 0.02, 0.08])
def test_a_healthy_job_has_no_straggler(seed: int, noise: float) -> None:
    assert job_report(job(seed, noise=noise)).stragglers == ()


@pytest.mark.parametrize("seed", range(25))
def test_a_slow_device_is_named_with_its_rank_and_cause(seed: int) -> None:
    rank = seed % 16
    report = job_report(job(seed, fault=slow_device([rank], 1.2)))
    assert {one.ranks for one in report.stragglers} == {(rank,)}
    first = report.stragglers[0]
    assert (first.stage, first.steps, first.cause) == ("backward", None, "slower device (all kernels alike)")
    assert first.excess == pytest.approx(0.2, abs=0.03)


@pytest.mark.parametrize("seed", range(25))
def test_a_slow_node_is_named_as_one(seed: int) -> None:
    node = seed % 4
    ranks = list(range(8 * node, 8 * node + 8))
    report = job_report(job(seed, count=32, fault=slow_device(ranks, 1.15)))
    first = report.stragglers[0]
    assert (first.ranks, first.node) == (tuple(ranks), f"node-{node}")
    assert first.sentence.startswith(f"Ranks {ranks[0]}-{ranks[-1]} (node-{node}): backward")


@pytest.mark.parametrize("seed", range(25))
def test_a_loader_that_stalls_for_some_steps_is_named_with_them(seed: int) -> None:
    rank = (seed * 5) % 16
    fault = slower([rank], "data_loading", 30, range(20, 41))
    report = job_report(job(seed, fault=fault))
    (only,) = report.stragglers
    assert (only.ranks, only.stage, only.steps) == ((rank,), "data_loading", (20, 40))
    assert only.cause == "its batches arrive late"
    assert only.excess_ms == pytest.approx(29, rel=0.05)


@pytest.mark.parametrize("seed", range(25))
def test_the_cost_is_what_the_job_would_gain(seed: int) -> None:
    rank = seed % 16
    slow = job_report(job(seed, fault=slower([rank], "forward", 2)))
    healthy = job_report(job(seed))
    gain = slow.slowest_ms - healthy.slowest_ms
    assert slow.stragglers[0].cost_ms == pytest.approx(gain, rel=0.05)


def test_one_long_kernel_is_named() -> None:
    def plant(
        work: dict[int, dict[str, list[float]]], kernels: dict[int, dict[str, tuple[float, float]]]
    ) -> None:
        work[3]["forward"] = [value + 15 for value in work[3]["forward"]]
        kernels[3] = {**KERNELS, "softmax": (50.0, 0.4)}

    (only,) = job_report(job(1, fault=plant)).stragglers
    assert (only.ranks, only.cause) == ((3,), "mostly softmax")


@pytest.mark.parametrize(
    ("softmax", "cause"),
    [
        ((200.0, 0.1), "more work (as many ms per kernel, more kernels)"),
        ((50.0, 0.1), "in Python or waiting (no kernel takes longer)"),
    ],
)
def test_what_no_single_kernel_explains(softmax: tuple[float, float], cause: str) -> None:
    def plant(
        work: dict[int, dict[str, list[float]]], kernels: dict[int, dict[str, tuple[float, float]]]
    ) -> None:
        work[3]["forward"] = [value + 15 for value in work[3]["forward"]]
        kernels[3] = {**KERNELS, "softmax": softmax}

    (only,) = job_report(job(1, fault=plant)).stragglers
    assert only.cause == cause


def test_without_a_device_operators_are_named() -> None:
    """Rank 1 multiplies for 25 us where rank 0 takes 10; both call it twice."""
    ranks = [
        of_rank(
            annotate(
                drawn_trace(
                    "\n".join(
                        f"""
            main | {at}      {at + 100}            | ProfilerStep#{step}
            main | {at + 5}  {at + 5 + each}       | aten::mm
            main | {at + 35} {at + 35 + each}      | aten::mm
            main | {at + 62} {at + 62 + each}      | c10d::allreduce_
            gloo | {at + 35 + each} {at + 90}      | gloo:all_reduce
        """
                        for step, at in enumerate(range(0, 500, 100))
                    )
                )
            ),
            number,
        )
        for number, each in enumerate((10, 25))
    ]
    sketches = [sketch_of(rank) for rank in ranks]
    assert [one.kernels["aten::mm"] for one in sketches] == [(2.0, 0.01), (2.0, 0.025)]
    (only,) = job_report(sketches).stragglers
    assert (only.ranks, only.cause) == ((1,), "mostly aten::mm")


def test_a_rank_that_waits_longest_is_never_the_straggler() -> None:
    """All wait for rank 2, rank 0 longest as it has least work."""

    def plant(work: dict[int, dict[str, list[float]]], kernels: object) -> None:
        work[2]["backward"] = [value + 20 for value in work[2]["backward"]]
        work[0]["backward"] = [value * 0.5 for value in work[0]["backward"]]

    report = job_report(job(2, fault=plant))
    assert [one.ranks for one in report.stragglers] == [(2,)]
    assert findings_of(report).verdict.startswith("Rank 2: backward 50% longer in every step")


def test_ranks_with_other_step_numbers_are_compared_by_position() -> None:
    sketches = job(1, count=4, fault=slower([1], "forward", 2))
    shifted = [
        msgspec.structs.replace(one, steps=[step + 100 * one.rank for step in one.steps]) for one in sketches
    ]
    assert [one.ranks for one in job_report(shifted).stragglers] == [(1,)]


@pytest.mark.parametrize("seed", range(3))
def test_each_half_of_the_ranks_may_be_slow_in_a_stage_of_its_own(seed: int) -> None:
    """No rank is among the faster ones in both stages."""

    def plant(work: dict[int, dict[str, list[float]]], kernels: object) -> None:
        slower([0, 1, 2, 3], "forward", 1.5)(work, {})
        slower([4, 5, 6, 7], "backward", 1.5)(work, {})

    found = job_report(job(seed, count=8, fault=plant)).stragglers
    assert {one.ranks: one.stage for one in found} == {(0, 1, 2, 3): "forward", (4, 5, 6, 7): "backward"}


def test_one_rank_alone_is_no_straggler() -> None:
    assert job_report(job(1, count=1)).stragglers == ()


def test_a_sketch_of_many_steps_is_small() -> None:
    sketch = job(1, count=1, steps=200)[0]
    kernels = {f"void at::native::kernel_{number:0100}": (1.0, 0.123456) for number in range(100)}
    full = msgspec.structs.replace(sketch, kernels=kernels)
    assert len(msgspec.msgpack.encode(full)) < 100_000


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("noise", [0.002, 0.02, 0.08])
def test_of_two_healthy_ranks_none_is_slow(seed: int, noise: float) -> None:
    assert job_report(job(seed, count=2, noise=noise)).stragglers == ()


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("steps", [3, 60])
def test_the_slower_of_two_ranks_is_named(seed: int, steps: int) -> None:
    rank = seed % 2
    slow = job_report(job(seed, count=2, steps=steps, fault=slower([rank], "forward", 2)))
    first = slow.stragglers[0]
    assert (first.ranks, first.stage, first.steps) == ((rank,), "forward", None)
    gain = slow.slowest_ms - job_report(job(seed, count=2, steps=steps)).slowest_ms
    assert first.cost_ms == pytest.approx(gain, rel=0.1)


def test_the_own_work_of_two_ranks_is_in_the_middle_of_both() -> None:
    """Not in the middle of all their steps: one is slow in two thirds of its own."""
    report = job_report(job(7, count=2, fault=slower([1], "forward", 3.0, range(20, 60))))
    both = [sum(row.work_ms.values()) for row in report.rows]
    assert report.work_ms == pytest.approx(sum(both) / 2, rel=0.02)


@pytest.mark.parametrize("seed", range(20))
def test_of_two_ranks_the_slow_one_may_be_unsteady(seed: int) -> None:
    """Its backward takes 1.2 to 2.8 times as long, that of the other 1 % more or less."""

    def plant(work: dict[int, dict[str, list[float]]], kernels: object) -> None:
        chance = random.Random(seed)
        work[1]["backward"] = [value * chance.uniform(1.2, 2.8) for value in work[1]["backward"]]

    (only,) = job_report(job(seed, count=2, steps=20, fault=plant)).stragglers
    assert (only.ranks, only.stage, only.steps) == ((1,), "backward", None)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("count", [2, 4])
def test_a_rank_is_slow_where_no_stage_alone_shows_it(seed: int, count: int) -> None:
    """8 ms move between forward and backward, to and fro. Rank 1 works 15 ms longer."""

    def plant(work: dict[int, dict[str, list[float]]], kernels: object) -> None:
        for rank, stages in work.items():
            for step in range(6):
                moved = 8 * (-1) ** (rank + step)
                stages["forward"][step] -= moved
                stages["backward"][step] += moved + (15 if rank == 1 else 0)

    (only,) = job_report(job(seed, count=count, steps=6, fault=plant)).stragglers
    assert (only.ranks, only.stage, only.steps) == ((1,), "backward", None)


def test_late_batches_count_for_no_straggler_where_no_device_computes() -> None:
    late = job(1, count=32, fault=slower([3], "data_loading", 30.0))
    on_cpus = [msgspec.structs.replace(one, device="", has_device=False) for one in late]
    healthy = job_report(job(1, count=32)).whatifs["no_straggler"]
    assert job_report(on_cpus).whatifs["no_straggler"] == pytest.approx(healthy, rel=0.02)
    assert job_report(late).whatifs["no_straggler"] > healthy + 20
