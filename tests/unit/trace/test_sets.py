"""Distinct values and chosen codes, against NumPy's own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from stepscope.trace.sets import distinct, members

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
