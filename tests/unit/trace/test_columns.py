"""Rows of columns, compiled and by NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.trace.columns import constant, gathered, taken

DICE = np.random.default_rng(0)
ROWS = DICE.integers(-50, 50, 9000)


@pytest.mark.parametrize("width", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.int16, np.int32, np.int64, np.float64])
def test_compiled_rows_are_those_of_numpy(dtype, width) -> None:
    column = DICE.integers(0, 100, 50).astype(dtype)
    rows = ROWS.astype(width)
    found = gathered(column, rows)
    assert found.dtype == column.dtype
    assert found.tolist() == column[rows].tolist()


@pytest.mark.parametrize("row", [50, -51])
def test_a_row_that_is_not_there_is_an_error_as_in_numpy(row: int) -> None:
    rows = np.append(ROWS, row)
    with pytest.raises(IndexError):
        gathered(np.arange(50), rows)


@pytest.mark.parametrize(
    ("column", "rows"),
    [
        (np.arange(100)[::2], ROWS),
        (np.arange(100), np.repeat(ROWS, 2)[::2]),
        (np.arange(100).reshape(50, 2), ROWS),
        (np.arange(100), np.abs(ROWS).reshape(-1, 3)),
        (np.arange(100).reshape(50, 2), np.abs(ROWS).reshape(-1, 3) % 50),
        (np.arange(100), np.abs(ROWS).astype(np.uint64)),
        (np.arange(100), ROWS.astype(">i8")),
        (np.arange(9000), ROWS > 0),
        (np.array([*"abcdefghij"] * 5, object), ROWS),
    ],
)
def test_what_is_not_plain_is_left_to_numpy(column, rows) -> None:
    assert gathered(column, rows).tolist() == column[rows].tolist()


def test_rows_of_a_constant_are_constant_and_have_its_type() -> None:
    column = constant(-1, 9, np.int16)
    for rows, count in [([2, 0, 2], 3), (np.arange(9) > 3, 5), ([], 0)]:
        found = taken(column, rows)
        assert (found.tolist(), found.dtype, found.strides) == ([-1] * count, np.int16, (0,))
    assert taken(column, [[0, 1], [2, 3]]).tolist() == [[-1, -1], [-1, -1]]
    assert taken(np.arange(9), np.arange(9) > 6).tolist() == [7, 8]
