"""Columns that grow, and columns that hold one value."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.trace import columns
from stepscope.trace.columns import GrowingArray, constant, taken

PIECES = st.lists(st.lists(st.integers(-9, 9), max_size=5), max_size=5)


@given(PIECES)
def test_a_growing_array_holds_what_was_appended(pieces: list[list[int]]) -> None:
    array = GrowingArray(np.int32)
    for piece in pieces:
        array.append(np.array(piece, np.int32))
    found = array.finished()
    assert found.tolist() == [value for piece in pieces for value in piece]
    assert found.dtype == np.int32


def test_a_large_one_keeps_its_rows_as_it_grows() -> None:
    array = GrowingArray(np.int64)
    for first in range(0, 1_000_000, 10_000):
        array.append(np.arange(first, first + 10_000))
    np.testing.assert_array_equal(array.finished(), np.arange(1_000_000))


def test_rows_that_a_column_missed_are_filled_in() -> None:
    array = GrowingArray(np.int64)
    array.fill(-1, until=2)
    array.append(np.array([7]))
    array.fill(-1, until=2)
    assert array.finished().tolist() == [-1, -1, 7]


def test_where_memory_cannot_be_extended_it_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fixed(mmap.mmap):
        def resize(self, newsize: int) -> None:
            raise SystemError("mmap: resizing not available--no mremap()")

    monkeypatch.setattr(columns, "_memory", lambda size: Fixed(-1, size))
    array = GrowingArray(np.int64)
    for first in range(0, 100_000, 1000):
        array.append(np.arange(first, first + 1000))
    np.testing.assert_array_equal(array.finished(), np.arange(100_000))


@given(st.lists(st.booleans(), min_size=3, max_size=3))
def test_rows_of_a_constant_column_are_a_constant_column(chosen: list[bool]) -> None:
    column, mask = constant(-1, 3, np.int32), np.array(chosen)
    for rows in (mask, np.flatnonzero(mask), np.flatnonzero(mask).tolist()):
        found = taken(column, rows)
        assert found.tolist() == [-1] * sum(chosen)
        assert found.dtype == np.int32
        assert taken(np.arange(3), rows).tolist() == np.flatnonzero(mask).tolist()


def test_a_constant_column_takes_no_memory_and_cannot_be_changed() -> None:
    column = constant(0, 10**12, np.int64)
    assert len(column) == 10**12
    with pytest.raises(ValueError, match="read-only"):
        column[0] = 1
