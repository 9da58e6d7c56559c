"""Orders of rows, runs of equal keys, and numbers for distinct values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from stepscope.arrays import IntArray
from stepscope.trace.interner import Interner
from stepscope.trace.row_order import begins_run, ends_run, inverse, stable_order

BOUNDS = st.sampled_from([-(2**63), 2**16, 2**63 - 1])


def test_the_inverse_of_an_order_tells_where_each_row_went() -> None:
    order = np.random.default_rng(0).permutation(100)
    assert inverse(order)[order].tolist() == list(range(100))


@given(arrays.arrays(np.int64, st.integers(0, 30), elements=st.integers(-3, 3) | BOUNDS))
def test_equal_keys_keep_their_order(keys: IntArray) -> None:
    assert stable_order(keys).tolist() == sorted(range(len(keys)), key=keys.tolist().__getitem__)


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
