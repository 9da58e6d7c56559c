from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.trace.intervals import Intervals, grouped_union, index_pairs

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


SOME = Intervals([5, 0, 20, 7, 9, 40], [9, 3, 30, 12, 9, 38])  # [0, 3), [5, 12) and [20, 30)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (SOME, [(0, 3), (5, 12), (20, 30)]),
        (Intervals([0, 5, 1], [5, 9, 2]), [(0, 9)]),  # those that touch are one
        (SOME.clip(2, 25), [(2, 3), (5, 12), (20, 25)]),
        (SOME.clip(6, 7), [(6, 7)]),
        *((SOME.clip(start, end), []) for start, end in ((3, 5), (12, 20), (30, 40), (25, 8))),
        (SOME.gaps(-5, 40), [(-5, 0), (3, 5), (12, 20), (30, 40)]),
        (SOME.gaps(0, 30), [(3, 5), (12, 20)]),
        (SOME.gaps(13, 15), [(13, 15)]),
        (SOME.minus(Intervals([1, 25], [6, 50])), [(0, 1), (6, 12), (20, 25)]),
        (SOME.minus(SOME), []),
        (Intervals([], []).minus(SOME), []),
        (SOME.intersect(Intervals([1, 25], [6, 50])), [(1, 3), (5, 6), (25, 30)]),
        (SOME.union(Intervals([1, 25], [6, 50])), [(0, 12), (20, 50)]),
    ],
)
def test_sets_of_intervals_drawn_by_hand(found: Intervals, expected: Pairs) -> None:
    assert list(zip(found.starts.tolist(), found.ends.tolist(), strict=True)) == expected
    assert (found.total(), len(found)) == (sum(end - start for start, end in expected), len(expected))


def test_time_before_and_within_drawn_by_hand() -> None:
    times = np.array([-1, 0, 2, 3, 4, 8, 30, 99])
    assert SOME.before(times).tolist() == [0, 0, 2, 3, 3, 6, 20, 20]
    assert SOME.within(np.array([0, 4]), np.array([4, 25])).tolist() == [3, 12]
    assert Intervals([], []).before(times).tolist() == [0] * 8


def test_parts_within_windows_drawn_by_hand() -> None:
    parts = SOME.cut(np.array([1, 6, 40, 0, 12]), np.array([7, 8, 50, 30, 20]))
    assert list(zip(*(column.tolist() for column in parts), strict=True)) == [
        *((0, 1, 3), (0, 5, 7)),
        (1, 6, 8),
        *((3, 0, 3), (3, 5, 12), (3, 20, 30)),
    ]


def test_pairs_of_indices_are_those_of_each_range() -> None:
    left, right = index_pairs(np.array([4, 7, 9]), np.array([6, 7, 12]))
    assert (left.tolist(), right.tolist()) == ([0, 0, 2, 2, 2], [4, 5, 9, 10, 11])


@pytest.mark.parametrize(
    ("groups", "starts", "ends", "expected"),
    [
        ([], [], [], [0, 0]),
        ([0, 1], [0, 0], [10, 10], [10, 10]),  # one ends as the next group begins
        ([0, 1, 0], [-5, -3, -4], [-2, -1, 0], [5, 2]),
        ([0, 0], [4, 0], [6, 5], [6, 0]),
        ([1, 0, 1], [0, 1, 9], [2, 3, 9], [2, 2]),
        ([0, 0, 0], [0, 1, 6], [5, 3, 8], [7, 0]),
    ],
)
def test_union_in_groups_drawn_by_hand(
    groups: list[int], starts: list[int], ends: list[int], expected: list[int]
) -> None:
    columns = (np.array(column, np.int64) for column in (groups, starts, ends))
    found = grouped_union(*columns, 2)
    assert (found.tolist(), found.dtype) == (expected, np.int64)


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
