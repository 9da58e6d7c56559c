"""Which steps are unusually long, of drawn runs with known truth."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from stepscope.base.arrays import Floats, Mask
from stepscope.facts.slow_parts import FEWEST, _edges_of_peaks, slow_parts

STEPS = 5000
Draw = Callable[[np.random.Generator], Floats]
HEALTHY: dict[str, Draw] = {
    "normal": lambda rng: rng.normal(20, 1, STEPS),
    "log-normal": lambda rng: 20 * rng.lognormal(0, 0.1, STEPS),
    "gamma": lambda rng: 15 + rng.gamma(2, 2, STEPS),
    "heavy tail": lambda rng: 20 + rng.pareto(2.5, STEPS),
    "two kinds of steps": lambda rng: np.where(np.arange(STEPS) % 2, 20, 30) + rng.normal(0, 0.5, STEPS),
    "dependent": lambda rng: 20 + np.convolve(rng.normal(0, 1, STEPS + 49), 0.8 ** np.arange(50), "valid"),
}


def judged(lengths: Floats) -> Mask:
    parts = slow_parts(lengths)
    slow = parts.single.copy()
    for first, last in parts.stretches:
        slow[first : last + 1] = True
    return slow


@pytest.mark.parametrize("kind", HEALTHY)
def test_at_most_one_of_twenty_healthy_runs_has_a_slow_step(kind: str) -> None:
    runs = [judged(HEALTHY[kind](np.random.default_rng(seed))) for seed in range(20)]
    assert sum(slow.any() for slow in runs) <= 1


@pytest.mark.parametrize(
    ("more", "steps"), [(1.0, 10), (1.0, 300), (0.3, 20), (0.3, 300), (0.1, 300), (0.1, 2500)]
)
def test_stretches_are_found_at_their_steps(more: float, steps: int) -> None:
    found, false = 0, 0
    for seed in range(10):
        lengths = 20 * np.random.default_rng(seed).lognormal(0, 0.05, STEPS)
        lengths[1000 : 1000 + steps] *= 1 + more
        slow = judged(lengths)
        found += slow[1000 : 1000 + steps].mean() > 0.8
        false += slow[:980].sum() + slow[1020 + steps :].sum()
    assert found >= 9
    assert false <= 10


def test_a_stretch_ends_where_the_excess_over_the_usual_step_more_than_doubles() -> None:
    lengths = np.random.default_rng(0).normal(20, 0.5, 1000)
    lengths[200:500] += 4
    lengths[500:540] += 60
    lengths[540:600] += 50
    (small, large) = slow_parts(lengths).stretches
    assert small == (pytest.approx(200, abs=5), 499)
    assert large == (500, 599)


@pytest.mark.parametrize("seed", range(10))
def test_a_stretch_of_much_longer_steps_ends_where_they_do_whatever_else_shifts(seed: int) -> None:
    """By 1.2 after each of some shifts, as on a shared machine; by 40 in steps 200 to 239."""
    rng = np.random.default_rng(seed)
    lengths = rng.normal(20, 0.3, 400)
    for first in rng.integers(0, 400, 3):
        lengths[first : first + int(rng.integers(10, 300))] += 1.2
    lengths[200:240] += rng.uniform(20, 60, 40)
    assert (200, 239) in slow_parts(lengths).stretches


def test_the_noise_of_a_slow_stretch_makes_no_stretches_inside_it() -> None:
    """Its steps depend on their neighbors: ten in a row often exceed the usual by twice its median."""
    rng = np.random.default_rng(0)
    level = np.convolve(rng.normal(0, 1, 1249), 0.9 ** np.arange(50), "valid")
    lengths = rng.normal(20, 0.3, 2000)
    lengths[400:1600] += 2 * np.exp(0.7 * level)
    assert _edges_of_peaks(lengths - 20, 400, 1600) == []


def test_single_steps_are_found() -> None:
    lengths = 20 * np.random.default_rng(0).lognormal(0, 0.05, STEPS)
    lengths[[700, 2100, 4000]] = 80
    parts = slow_parts(lengths)
    assert np.flatnonzero(parts.single).tolist() == [700, 2100, 4000]
    assert parts.stretches == []


def test_the_usual_step_is_the_fast_one_also_where_most_are_slow() -> None:
    lengths = np.random.default_rng(0).normal(20, 0.5, 1000)
    lengths[300:] += 10
    parts = slow_parts(lengths)
    assert parts.usual == pytest.approx(20, abs=0.2)
    assert parts.stretches == [(300, 999)]


@pytest.mark.parametrize("count", [0, 1, FEWEST - 1])
def test_a_few_steps_are_not_judged(count: int) -> None:
    assert not judged(np.arange(count, dtype=float)).any()


def test_steps_of_equal_length_are_all_usual() -> None:
    assert not judged(np.full(1000, 20.0)).any()
