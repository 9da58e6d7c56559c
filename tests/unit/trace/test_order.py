"""Orders of rows, runs of equal keys, and numbers for distinct values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from oracles import nesting as oracle

from stepscope.base.arrays import IntArray, Times
from stepscope.trace.row_order import begins_run, ends_run, grouped, inverse, stable_order, start_order
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
