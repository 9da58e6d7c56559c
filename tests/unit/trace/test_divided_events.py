"""Events that divide among several things."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.trace.shares import NO_SHARES, Shares

# Event 2 is of 7 and 8 by halves; 5 of 8 alone; 6 of 9, 7 and 8 by a fifth, a half and the rest.
SHARES = Shares.of(
    np.array([2, 2, 5, 6, 6, 6]), np.array([7, 8, 8, 9, 7, 8]), np.array([0.5, 0.5, 1.0, 0.2, 0.5, 0.3])
)


def test_shares_of_an_event_reach_its_end() -> None:
    assert SHARES.until.tolist() == pytest.approx([0.5, 1, 1, 0.2, 0.7, 1])
    rounded = Shares.of(np.array([0, 0, 0]), np.array([1, 2, 3]), np.full(3, 0.333))
    assert rounded.until.tolist() == pytest.approx([0.333, 0.666, 1])


@pytest.mark.parametrize(
    ("rows", "values", "parts"),
    [
        ([], [], []),
        ([1, 3], [10, 10], []),
        ([2], [11], [(0, 7, 5), (0, 8, 6)]),
        ([6, 4, 2], [99, 7, 10], [(0, 9, 19), (0, 7, 50), (0, 8, 30), (2, 7, 5), (2, 8, 5)]),
        ([5, 2], [3, 1], [(0, 8, 3), (1, 7, 0), (1, 8, 1)]),
    ],
)
def test_values_are_divided_and_add_up(
    rows: list[int], values: list[int], parts: list[tuple[int, int, int]]
) -> None:
    columns = SHARES.divide(np.array(rows, np.int64), np.array(values, np.int64))
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == parts


def test_an_event_that_is_not_divided_is_its_own_element() -> None:
    rows, values = np.array([2, 4, 5, 9]), np.array([10, 20, 30, 40])
    element, value = SHARES.spread(rows, values)
    assert sorted(zip(element.tolist(), value.tolist(), strict=True)) == [
        *((4, 20), (7, 5), (8, 5), (8, 30), (9, 40))
    ]
    assert [column.tolist() for column in NO_SHARES.spread(rows, values)] == [rows.tolist(), values.tolist()]


def test_no_shares_are_of_no_event() -> None:
    assert [column.tolist() for column in (NO_SHARES.event, NO_SHARES.element, NO_SHARES.until)] == [
        [],
        [],
        [],
    ]
