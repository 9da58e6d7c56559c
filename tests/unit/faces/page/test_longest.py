"""The longest rows of many sets, against sorting them all."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.faces.page.selection import longest_of_each


@pytest.mark.parametrize("seed", range(20))
def test_the_longest_of_each_set_are_those_that_sorting_finds(seed: int) -> None:
    random = np.random.default_rng(seed)
    of = np.sort(random.integers(0, 6, random.integers(0, 400)))
    time = random.integers(0, random.choice([3, 1000]), len(of))  # with many equals, and with few
    most = int(random.integers(1, 12))
    sorted_rows = [
        sorted(np.flatnonzero(of == one).tolist(), key=lambda row: (-time[row], row))[:most]
        for one in np.unique(of).tolist()
    ]
    assert longest_of_each(of, time, most).tolist() == [row for some in sorted_rows for row in some]


def test_of_equals_the_first_are_listed() -> None:
    assert longest_of_each(np.array([0, 0, 0]), np.array([1, 4, 4]), 2).tolist() == [1, 2]
