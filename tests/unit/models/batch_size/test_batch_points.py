"""Which batch sizes are measured, and what a sweep does when memory runs out or times change."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from stepscope.errors import BatchError
from stepscope.models.batch_size.entry import Entry
from stepscope.models.batch_size.entry_profile import make_profile
from stepscope.models.batch_size.measure_entry import EntryMeasuring
from stepscope.models.batch_size.measurement import BatchPoint, MeasuredBatch, combine
from stepscope.models.batch_size.sweep import Plan, Sweep, next_batch, next_on_device, sweep, widest

ONCE = Plan(extra=0, rounds=1)


def chosen(start: int, limit: int = 10**9, wanted: int = 5) -> list[int]:
    measured: list[int] = []
    too_large = None
    while (batch := next_batch(start, measured, too_large, wanted)) is not None:
        if batch > limit:
            too_large = min(batch, too_large or batch)
        else:
            measured.append(batch)
    return measured


def test_larger_by_a_constant_from_the_users_own() -> None:
    assert chosen(32, wanted=3) == [32, 48, 64]
    assert chosen(1) == [1, 2, 3, 4, 5]


def test_then_a_quarter_and_a_half_of_it() -> None:
    assert chosen(32) == [32, 48, 64, 8, 16]
    assert chosen(6) == [6, 9, 12, 1, 3]


def test_smaller_ones_where_memory_runs_out() -> None:
    assert chosen(32, limit=50) == [32, 48, 8, 16, 24]
    assert chosen(32, limit=32, wanted=4) == [32, 8, 16, 24]


def test_halved_until_one_fits() -> None:
    assert chosen(64, limit=20, wanted=4) == [16, 12, 8, 4]


def test_fewer_points_where_there_are_no_more() -> None:
    assert chosen(2, limit=2) == [2, 1]
    assert chosen(1, limit=0) == []


def measure_line(limit: int = 10**9):  # type: ignore[no-untyped-def]
    def measure(batch: int) -> MeasuredBatch | None:
        return None if batch > limit else MeasuredBatch(batch, (2.0 * batch + 10,) * 3, 100 * batch)

    return measure


def test_a_sweep_holds_the_last_point_back() -> None:
    found = sweep(measure_line(), 8, ONCE)
    points = {point.batch: point for point in found.points()}
    assert sorted(points) == [2, 4, 8, 12, 16]
    assert [batch for batch, point in points.items() if point.held_back] == [4]
    assert points[8].ms == 26


def test_a_sweep_tells_what_was_too_large() -> None:
    found = sweep(measure_line(limit=13), 8, ONCE)
    assert found.too_large == 16
    assert sorted(found.rounds) == [2, 4, 6, 8, 12]


def faster_from(switch: int):  # type: ignore[no-untyped-def]
    """Another kernel from some batch size on, as oneDNN's for convolutions: 90 ms, then 60."""

    def measure(batch: int) -> MeasuredBatch:
        return MeasuredBatch(batch, (batch * (90.0 if batch < switch else 60.0) + 10,) * 3, batch)

    return measure


def test_a_sweep_without_need_measures_no_more() -> None:
    assert list(sweep(measure_line(), 16, Plan(extra=3, rounds=1)).rounds) == [16, 24, 32, 4, 8]


def test_a_sweep_goes_on_between_points_where_run_time_is_no_line() -> None:
    found = sweep(faster_from(16), 16, Plan(extra=3, rounds=1))
    assert list(found.rounds) == [16, 24, 32, 4, 8, 12, 14]  # 14 and 16 are near enough
    model = make_profile(found.points()).time
    assert [piece.start for piece in model.pieces] == [4, 14, 16]
    assert model.at(10) == pytest.approx(10 * 90 + 10)
    assert model.at(20) == pytest.approx(20 * 60 + 10)


def test_further_points_are_measured_as_often_as_the_others() -> None:
    found = sweep(faster_from(16), 16, Plan(extra=1, rounds=3))
    assert {batch: len(rounds) for batch, rounds in found.rounds.items()} == dict.fromkeys(
        (16, 24, 32, 4, 8, 12), 2
    )


def test_what_noise_explains_needs_no_further_point() -> None:
    luck: dict[int, list[float]] = {}

    def measure(batch: int) -> MeasuredBatch:
        mine = luck.setdefault(batch, [(1.0, 1.3, 0.8)[(batch + n) % 3] for n in range(3)])
        return MeasuredBatch(batch, (batch * 10.0 * mine.pop(),), batch)

    assert len(sweep(measure, 16, Plan(extra=3, rounds=3)).rounds) == 5


def test_a_sweep_ends_after_so_many_extra_points() -> None:
    wild = lambda batch: MeasuredBatch(batch, (float(batch**2 % 97 + 10),) * 3, batch)  # noqa: E731
    assert len(sweep(wild, 32, Plan(extra=2, rounds=1)).rounds) == 7


def test_a_sweep_that_fits_nothing_says_so() -> None:
    with pytest.raises(BatchError, match="does not fit into memory"):
        sweep(measure_line(limit=0), 8, ONCE)


def test_rounds_end_once_times_are_stable() -> None:
    found = sweep(measure_line(), 8, Plan(extra=0, rounds=5))
    assert found.stable
    assert {len(rounds) for rounds in found.rounds.values()} == {2}


def test_rounds_go_on_while_times_change() -> None:
    times = iter([10.0 * 1.5**n for n in range(15)])
    found = sweep(lambda batch: MeasuredBatch(batch, (next(times),), batch), 8, Plan(extra=0, rounds=3))
    assert found.stable is False


def test_a_point_is_the_median_of_its_rounds() -> None:
    rounds = [MeasuredBatch(8, (ms,), size) for ms, size in ((10, 5), (30, 7), (11, 6))]
    point = combine(rounds)
    assert (point.ms, point.bytes, point.repeats) == (11, 7, 3)


GPU = {"device": {"type": "cuda", "name": "NVIDIA H200", "memory_bytes": 80 << 30}}


def measure_gpu(limit: int = 10**9):  # type: ignore[no-untyped-def]
    """Steps of 20 ms of the CPU or 1 ms a sample of the device; 1 GiB and 100 MiB a sample."""

    def measure(batch: int) -> MeasuredBatch | None:
        size = (1 << 30) + (100 << 20) * batch
        return MeasuredBatch(batch, (max(20.0, batch),), size, GPU) if batch <= limit else None

    return measure


def test_on_a_gpu_both_ends_come_first_then_the_widest_gap() -> None:
    measured = list(sweep(measure_gpu(), 32, ONCE).rounds)
    assert measured == [32, 8, 686, 16, 23]  # to 85 % of the memory; the bend is at 20


@pytest.mark.parametrize(("start", "limit", "sizes"), [(1, 10**9, [1, 2, 686]), (1, 1, [1]), (2, 2, [2, 1])])
def test_on_a_gpu_one_sample_is_followed_by_two(start: int, limit: int, sizes: list[int]) -> None:
    assert list(sweep(measure_gpu(limit), start, ONCE).rounds)[:3] == sizes


def test_on_a_gpu_the_large_end_stays_below_what_did_not_fit() -> None:
    result = sweep(measure_gpu(limit=500), 32, ONCE)
    assert result.too_large == 686
    assert sorted(result.rounds)[-1] == 359


def test_on_a_gpu_no_step_is_measured_that_takes_long() -> None:
    points = [BatchPoint(8, 100.0, 1 << 30), BatchPoint(32, 400.0, 2 << 30)]
    assert next_on_device(points, 32, 80 << 30, None) == 128  # 1.6 s: four times the user's own


def test_what_is_certain_is_not_measured() -> None:
    line = [BatchPoint(batch, 10.0 + batch, (1 << 30) + (batch << 20)) for batch in (8, 32, 128, 512)]
    assert widest(line, [64]) is None
    bent = [*line[:3], BatchPoint(512, 2000.0, 2 << 30)]
    assert widest(bent, [20, 64, 256]) == 256


@pytest.mark.parametrize(("shortest", "told"), [(0.96, False), (0.5, True)])
def test_inputs_vary_where_those_of_one_batch_size_do(shortest: float, told: bool) -> None:
    """Batches of 4 and of 16 samples have different sizes, and so does a last batch that is not full."""
    swept = Sweep()
    for batch, least in ((4, 1.0), (16, shortest)):
        elements = (round(least * batch * 100), batch * 100)
        facts: Any = {"input_elements": elements, "exact": True, "steps_ms": [1.0] * ONCE.effort.least}
        swept.add(batch, MeasuredBatch(batch, (1.0,), 1000, facts))
    entry = SimpleNamespace(batch=16, path="train.py")
    notes = EntryMeasuring(cast(Entry, entry), ONCE, cast(Any, None)).warnings(swept)
    wanted = "inputs of one batch size vary from step to step (800 to 1,600 elements); the longest were taken"
    assert notes == ([wanted] if told else [])
