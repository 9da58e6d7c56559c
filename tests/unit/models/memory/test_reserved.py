"""What a caching allocator reserves for recorded steps that repeat."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.models.memory.caching_allocator import (
    History,
    Settings,
    least_reserved,
    repeated,
    replay,
    runs_in,
)
from stepscope.models.memory.lifetimes import Lifetimes

MB = 1 << 20
PLAIN, EXPANDABLE = Settings(), Settings(expandable=True)


def life(*rows: tuple[float, float, int]) -> Lifetimes:
    """Rows of begin, end and MB; `inf` is outside of the recording."""
    begin, end, size = (np.array(column) for column in zip(*rows, strict=True))
    begin = np.where(np.isinf(begin), -np.inf, begin)
    nothing = np.zeros(len(size), np.int64)
    return Lifetimes(size.astype(np.int64) * MB, begin.astype(float), end.astype(float), nothing, nothing)


def reserved(history: History) -> int:
    return replay(history, PLAIN).peak_reserved


def test_segments_are_rounded_up_and_kept() -> None:
    history = repeated(life((np.inf, np.inf, 100), (1, 2, 31), (3, 4, 33)))
    used, needed = least_reserved(history, PLAIN)
    assert used == 134 * MB  # a rest of 1 MB stays in the block
    assert reserved(history) == (100 + 32 + 34) * MB  # the first segment is too small for the second block
    assert (100 + 34) * MB <= needed <= (100 + 34 + 2) * MB  # where it has to be returned


def test_what_has_no_bytes_takes_no_segment() -> None:
    rows = life((np.inf, np.inf, 100), (np.inf, np.inf, 0), (1, 2, 0))
    assert reserved(repeated(rows)) == 100 * MB


def test_what_the_step_before_left_is_released_by_this_one() -> None:
    """Gradients that live until the next step are there once, not once a step."""
    step = life((np.inf, 5, 40), (10, np.inf, 40))
    assert reserved(repeated(step)) == 40 * MB
    piled = life((10, np.inf, 40))  # nobody is seen to release it: it is replaced when made again
    assert reserved(repeated(piled)) == 40 * MB


@pytest.mark.parametrize(
    ("settings", "capacity", "runs"),
    [(PLAIN, 139, True), (PLAIN, 132, False), (EXPANDABLE, 140, True), (EXPANDABLE, 139, False)],
)
def test_a_step_runs_where_returned_segments_make_room(settings: Settings, capacity: int, runs: bool) -> None:
    """In pages of 20 MB 133 take 140."""
    rows = life((np.inf, np.inf, 100), (1, 2, 31), (3, 4, 33))
    assert runs_in(repeated(rows), settings, capacity * MB) is runs
