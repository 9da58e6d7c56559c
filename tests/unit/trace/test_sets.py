"""Distinct values and chosen codes, against NumPy's own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from stepscope.trace import sets
from stepscope.trace.sets import Interner, distinct, distinct_rows, members, one_of

BOUNDS = st.sampled_from([-(2**63), 2**63 - 1])


@given(arrays.arrays(np.int64, st.integers(0, 50), elements=st.integers(-5, 5) | BOUNDS))
def test_distinct_is_what_numpy_calls_unique(values):
    assert distinct(values).tolist() == np.unique(values).tolist()
    assert distinct(values).dtype == values.dtype


def test_narrow_integers_may_span_all_of_their_range():
    values = np.array([100, -100] * 200, np.int8)
    assert distinct(values).tolist() == [-100, 100]


@given(arrays.arrays(np.int32, st.integers(0, 20), elements=st.integers(-1, 7)), arrays.arrays(np.bool_, 8))
def test_members_are_the_rows_of_chosen_codes(codes, chosen):
    assert members(codes, chosen).tolist() == [bool(chosen[code]) and code >= 0 for code in codes]


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
def test_members_of_many_rows_are_the_same(dtype) -> None:
    codes = np.random.default_rng(0).integers(-1, 8, 9000).astype(dtype)
    chosen = np.array([True, False, True, True, False, True, True, True])
    expected = (codes >= 0) & chosen[codes]
    assert members(codes, chosen).tolist() == expected.tolist()


def test_a_code_beyond_the_list_is_an_error_however_many_rows_there_are() -> None:
    with pytest.raises(IndexError):
        members(np.full(9000, 8), np.ones(6, np.bool_))


@pytest.mark.parametrize(
    "values", [[], [3], [5, 3, 5], [-2, 10**9, -2], [[4, 1], [1, 0]], [-(2**63), 2**63 - 1]]
)
@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_distinct_values_are_sorted_and_of_the_same_type(values: list[int], dtype: type) -> None:
    array = np.array(values, np.int64).astype(dtype)
    found = distinct(array)
    assert (found.tolist(), found.dtype) == (sorted({*array.reshape(-1).tolist()}), dtype)


@pytest.mark.parametrize("count", range(7))
def test_few_codes_are_compared_and_many_looked_up(count: int) -> None:
    codes, wanted = np.array([-1, 0, 3, 5, 6, 2]), [5, 0, 6, 3, 2, 1][:count]
    expected = [code in wanted for code in codes.tolist()]
    chosen = np.zeros(7, np.bool_)
    chosen[wanted] = True
    assert one_of(codes, wanted).tolist() == members(codes, chosen).tolist() == expected


@pytest.mark.parametrize("table", [1, 6, 1 << 22])
@pytest.mark.parametrize(
    ("columns", "rows", "numbers"),
    [
        (([7, 7, 7], [1, 0, 1]), [(7, 0), (7, 1)], [1, 0, 1]),
        (([2, -1, 2, -1], [5, 5, 9, 5]), [(-1, 5), (2, 5), (2, 9)], [1, 0, 2, 0]),
        (([0, 10**12, 0], [3, 4, 3], [1, 1, 0]), [(0, 3, 0), (0, 3, 1), (10**12, 4, 1)], [1, 2, 0]),
        (([], []), [], []),
    ],
)
def test_rows_are_numbered_in_their_order(
    table: int,
    columns: tuple[list[int], ...],
    rows: list[tuple[int, ...]],
    numbers: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a table of all possible rows where that is small, else by sorting."""
    monkeypatch.setattr(sets, "_TABLE", table)
    found, number = distinct_rows(*(np.array(column, np.int64) for column in columns))
    assert (found, number.tolist()) == (rows, numbers)


def test_the_number_of_values_need_not_be_known() -> None:
    for count in (-1, 3):
        codes = Interner[str]().codes(["a", "b", "a"], count)
        assert (codes.tolist(), codes.dtype) == ([0, 1, 0], np.int32)
