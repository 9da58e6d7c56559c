"""Orders of rows, runs of equal keys, and numbers for distinct values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from stepscope.arrays import IntArray
from stepscope.trace.interner import Interner
from stepscope.trace.row_order import (
    begins_run,
    compiled_grouped,
    ends_run,
    grouped,
    grouped_in_python,
    inverse,
    stable_order,
)

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
    in_python = grouped_in_python(keys, groups)
    assert [part.tolist() for part in (order, first)] == [part.tolist() for part in in_python]


@pytest.mark.parametrize("key", [-1, 3])
def test_a_key_that_is_no_group_is_left_to_python(key: int) -> None:
    assert compiled_grouped(np.array([0, key]), 3) is None


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
