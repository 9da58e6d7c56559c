"""Rows of columns, compiled and by NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.trace.columns import gathered

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


def test_columns_that_are_not_end_to_end_are_left_to_numpy() -> None:
    column = np.arange(100)[::2]
    assert gathered(column, ROWS).tolist() == column[ROWS].tolist()
