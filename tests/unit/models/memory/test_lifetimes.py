"""The peak of lifetimes, against a walk over random histories."""

from __future__ import annotations

import random

import numpy as np
import pytest

from stepscope.models.memory.lifetimes import Lifetimes


def random_lifetimes(chance: random.Random, count: int) -> Lifetimes:
    """Allocations of which some begin before, and some end after, all times from 0 to 40."""
    start = np.array([chance.choice([-np.inf, *range(40)]) for _ in range(count)])
    length = np.array([chance.choice([np.inf, *range(1, 30)]) for _ in range(count)])
    end = np.maximum(start, 0) + length
    size = np.array([chance.randint(1, 1000) for _ in range(count)])
    return Lifetimes(size, start, end, np.zeros(count, np.int64), np.arange(count))


@pytest.mark.parametrize("seed", range(50))
def test_the_peak_is_the_greatest_sum_of_what_is_alive(seed: int) -> None:
    life = random_lifetimes(random.Random(seed), 60)
    totals = [int(life.bytes[life.alive(time)].sum()) for time in (-np.inf, *range(71))]
    peak, moment = life.peak()
    assert peak == max(totals)
    assert life.bytes[life.alive(moment)].sum() == peak


def test_memory_given_back_at_a_moment_can_be_taken_at_that_moment() -> None:
    life = Lifetimes(
        np.array([5, 5]), np.array([0.0, 1.0]), np.array([1.0, 2.0]), np.zeros(2, np.int64), np.arange(2)
    )
    assert life.peak()[0] == 5


def test_rows_are_taken_and_put_together() -> None:
    life = random_lifetimes(random.Random(1), 20)
    both = life.take(np.arange(12)).plus(life.take(np.arange(12, 20)))
    assert len(both) == 20
    assert both.peak() == life.peak()
