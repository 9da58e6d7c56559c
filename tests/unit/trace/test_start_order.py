"""The order of events by start, compiled and in Python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.arrays import IntArray, Times
from stepscope.trace.start_order import start_order, start_order_in_python

NUMBERS = st.integers(0, 9) | st.sampled_from([-(2**63), -1, 2**40, 2**63 - 1])
EVENTS = st.lists(st.tuples(NUMBERS, st.integers(0, 3)), max_size=80)


def expected(start: Times, duration: Times) -> list[int]:
    """By start, the longest first, else as recorded."""
    key = [(int(s), -int(d), row) for row, (s, d) in enumerate(zip(start, duration, strict=True))]
    return [row for _, _, row in sorted(key)]


def rows(order: IntArray | None, count: int) -> list[int]:
    return list(range(count)) if order is None else order.tolist()


@given(EVENTS)
def test_events_are_in_order_of_start_the_longest_first(
    library: Path, events: list[tuple[int, int]]
) -> None:
    start, duration = np.array(events, np.int64).reshape(-1, 2).T.copy()
    wanted = expected(start, duration)
    assert rows(start_order(start, duration, library), len(start)) == wanted
    assert rows(start_order_in_python(start, duration), len(start)) == wanted


def test_events_in_order_need_none(library: Path) -> None:
    start, duration = np.array([1, 2, 2]), np.array([1, 5, 5])
    assert start_order(start, duration, library) is None
    assert start_order_in_python(start, duration) is None


@pytest.mark.parametrize("spread", [1, 50, 10**12])
def test_many_events_are_in_order_however_they_are_spread(library: Path, spread: int) -> None:
    dice = np.random.default_rng(spread)
    start = np.append(dice.integers(0, spread, 3000), 2**60)  # and one that is far from the others
    duration = dice.integers(0, 5, len(start))
    assert rows(start_order(start, duration, library), len(start)) == expected(start, duration)
