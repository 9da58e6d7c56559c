"""Orders of rows, runs of equal keys, and numbers for distinct values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from oracles import nesting as oracle

from stepscope.base.arrays import IntArray, Times
from stepscope.trace.row_order import (
    begins_run,
    ends_run,
    grouped,
    inverse,
    last_of_key,
    outermost_of_key,
    place_in_group,
    places_among,
    stable_order,
    start_order,
)
from stepscope.trace.sets import Interner

BOUNDS = st.sampled_from([-(2**63), 2**16, 2**63 - 1])


def test_the_inverse_of_an_order_tells_where_each_row_went() -> None:
    order = np.random.default_rng(0).permutation(100)
    assert inverse(order)[order].tolist() == list(range(100))


@given(arrays.arrays(np.int64, st.integers(0, 30), elements=st.integers(-3, 3) | BOUNDS))
def test_equal_keys_keep_their_order(keys: IntArray) -> None:
    assert stable_order(keys).tolist() == sorted(range(len(keys)), key=keys.tolist().__getitem__)


@given(arrays.arrays(np.int64, st.integers(0, 30), elements=st.integers(0, 6)), st.integers(7, 9))
def test_rows_of_a_group_keep_their_order(keys: IntArray, groups: int) -> None:
    order, first = grouped(keys, groups)
    parts = [order[first[group] : first[group + 1]].tolist() for group in range(groups)]
    assert parts == [np.flatnonzero(keys == group).tolist() for group in range(groups)]
    expected = oracle.grouped(keys, groups)
    assert [part.tolist() for part in (order, first)] == [part.tolist() for part in expected]


@pytest.mark.parametrize("key", [-1, 3])
def test_a_key_that_is_no_group_is_an_error(key: int) -> None:
    with pytest.raises(IndexError, match="expected groups 0 to 2"):
        grouped(np.array([0, key]), 3)


@pytest.mark.parametrize(
    ("keys", "begins", "ends"),
    [
        ([], [], []),
        ([7], [True], [True]),
        ([5, 5, 7, 5], [True, False, True, True], [False, True, True, True]),
    ],
)
def test_a_run_begins_and_ends_where_the_key_changes(
    keys: list[int], begins: list[bool], ends: list[bool]
) -> None:
    column = np.array(keys, np.int64)
    assert begins_run(column).tolist() == begins
    assert ends_run(column).tolist() == ends


@pytest.mark.parametrize(
    ("keys", "order"),
    [
        ([], []),
        ([3, 1, 3, 1] * 9, [*range(1, 36, 2), *range(0, 36, 2)]),
        ([2**40, 2**40 + 65535, 2**40], [0, 2, 1]),
        ([2**40, 2**40 + 65536, 2**40 + 1], [0, 2, 1]),  # more than 16 bits apart
        ([-(2**63), 2**63 - 1, 0], [0, 2, 1]),
    ],
)
def test_rows_in_order_of_their_keys(keys: list[int], order: list[int]) -> None:
    assert stable_order(np.array(keys, np.int64)).tolist() == order
    assert inverse(np.array(order, np.int64)).tolist() == np.argsort(order).tolist()


@pytest.mark.parametrize(
    ("keys", "places"),
    [([], []), ([7], [0]), ([7, 5, 7, 7, 5], [0, 0, 1, 2, 1]), ([0, 1] * 20, [*np.repeat(range(20), 2)])],
)
def test_rows_of_a_key_are_counted(keys: list[int], places: list[int]) -> None:
    assert place_in_group(np.array(keys, np.int64)).tolist() == places


@pytest.mark.parametrize(
    ("values", "wanted", "places"),
    [
        ([], [1, 2], [-1, -1]),
        ([4, 2, 4, 9], [9, 4, 2, 3, 10, -1], [3, 0, 1, -1, -1, -1]),
        ([1, 0] * 20, [0, 1], [1, 0]),
    ],
)
def test_wanted_values_are_found_where_they_are_first(
    values: list[int], wanted: list[int], places: list[int]
) -> None:
    found = places_among(np.array(values, np.int64), np.array(wanted))
    assert (found.tolist(), found.dtype) == (places, np.int64)


def test_the_last_row_of_a_key_up_to_a_place_is_found() -> None:
    """Rows 0, 2 and 3 have key 7, at the places 4, 6 and 9; the first stands for an earlier one."""
    keys, places = np.array([7, 5, 7, 7]), np.array([4, 5, 6, 9])
    wanted, until = zip(
        *[(7, 4), (7, 5), (7, 6), (7, 99), (7, 0), (5, 0), (5, 99), (6, 9), (9, 0)], strict=True
    )
    found = last_of_key(keys, places, np.array(wanted), np.array(until))
    assert found.tolist() == [0, 0, 2, 3, 0, 1, 1, -1, -1]
    assert last_of_key(keys[:0], places[:0], np.array([7, 8]), np.array([0, 0])).tolist() == [-1, -1]


def test_spans_that_lie_in_another_of_their_key_are_left_out() -> None:
    spans = [(0, 9, 1), (2, 5, 1), (0, 5, 2), (9, 12, 1), (8, 11, 2), (5, 8, 2), (11, 12, 1), (12, 14, 1)]
    first, end, keys = np.array(spans).T
    inner = np.flatnonzero(~outermost_of_key(first, end, keys))
    assert inner.tolist() == [1, 6]
    assert outermost_of_key(*np.zeros((3, 0), np.int64)).tolist() == []


def test_values_have_numbers_in_order_of_appearance() -> None:
    names: Interner[str] = Interner()
    assert names.codes(["mm", "add", "mm"]).tolist() == [0, 1, 0]
    assert names["sum"] == 2
    assert list(names) == ["mm", "add", "sum"]


# -- events by start

NUMBERS = st.integers(0, 9) | st.sampled_from([-(2**63), -1, 2**40, 2**63 - 1])
EVENTS = st.lists(st.tuples(NUMBERS, st.integers(0, 3)), max_size=80)


def expected(start: Times, duration: Times) -> list[int]:
    """By start, the longest first, else as recorded."""
    key = [(int(s), -int(d), row) for row, (s, d) in enumerate(zip(start, duration, strict=True))]
    return [row for _, _, row in sorted(key)]


def rows(order: IntArray | None, count: int) -> list[int]:
    return list(range(count)) if order is None else order.tolist()


@given(EVENTS)
def test_events_are_in_order_of_start_the_longest_first(events: list[tuple[int, int]]) -> None:
    start, duration = np.array(events, np.int64).reshape(-1, 2).T.copy()
    wanted = expected(start, duration)
    assert rows(start_order(start, duration), len(start)) == wanted
    assert rows(oracle.start_order(start, duration), len(start)) == wanted


def test_events_in_order_need_none() -> None:
    start, duration = np.array([1, 2, 2]), np.array([1, 5, 5])
    assert start_order(start, duration) is None
    assert oracle.start_order(start, duration) is None


@pytest.mark.parametrize("spread", [1, 50, 10**12])
def test_many_events_are_in_order_however_they_are_spread(spread: int) -> None:
    dice = np.random.default_rng(spread)
    start = np.append(dice.integers(0, spread, 3000), 2**60)  # and one that is far from the others
    duration = dice.integers(0, 5, len(start))
    assert rows(start_order(start, duration), len(start)) == expected(start, duration)
