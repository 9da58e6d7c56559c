from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.trace.intervals import Intervals, grouped_union

Pairs = list[tuple[int, int]]
pairs = st.lists(st.tuples(st.integers(-5, 30), st.integers(-5, 30)), max_size=8)
moment = st.integers(-8, 33)


def covered(intervals: Pairs) -> set[int]:
    """The brute-force twin: every whole ns in any of [start, end)."""
    return {ns for start, end in intervals for ns in range(start, end)}


def made(intervals: Pairs) -> Intervals:
    return Intervals([start for start, _ in intervals], [end for _, end in intervals])


def cells(intervals: Intervals) -> set[int]:
    return covered(list(zip(intervals.starts.tolist(), intervals.ends.tolist(), strict=True)))


@given(pairs)
def test_an_interval_set_is_sorted_disjoint_and_complete(one: Pairs) -> None:
    found = made(one)
    assert cells(found) == covered(one)
    assert found.total() == len(covered(one))
    assert (found.starts < found.ends).all()
    assert (found.ends[:-1] < found.starts[1:]).all()


@given(pairs, pairs)
def test_set_operations(one: Pairs, other: Pairs) -> None:
    a, b = made(one), made(other)
    assert cells(a.union(b)) == covered(one) | covered(other)
    assert cells(a.intersect(b)) == covered(one) & covered(other)
    assert cells(a.minus(b)) == covered(one) - covered(other)


@given(pairs, moment, moment)
def test_a_window(one: Pairs, start: int, end: int) -> None:
    window = set(range(start, end))
    assert cells(made(one).clip(start, end)) == covered(one) & window
    assert cells(made(one).gaps(start, end)) == window - covered(one)


@given(pairs, st.lists(st.tuples(moment, moment).map(sorted), max_size=5))
def test_time_within_windows(one: Pairs, windows: list[list[int]]) -> None:
    starts, ends = (np.array([window[side] for window in windows], np.int64) for side in (0, 1))
    expected = [len(covered(one) & set(range(start, end))) for start, end in windows]
    assert made(one).within(starts, ends).tolist() == expected


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-5, 30), st.integers(0, 20)), max_size=8))
def test_union_in_each_group(rows: list[tuple[int, int, int]]) -> None:
    groups, starts, lengths = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    expected = [
        len(covered([(start, start + length) for group, start, length in rows if group == number]))
        for number in range(3)
    ]
    assert grouped_union(groups, starts, starts + lengths, 3).tolist() == expected


def test_union_in_groups_far_apart_in_time() -> None:
    far = 2**61
    starts = np.array([0, far, 2], np.int64)
    assert grouped_union(np.array([0, 3, 0]), starts, starts + 4, 4).tolist() == [6, 0, 0, 4]
