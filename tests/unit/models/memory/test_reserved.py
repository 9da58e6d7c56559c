"""What a caching allocator reserves for recorded steps that repeat."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.models.memory.caching_allocator import repeated, reserved, runs_in
from stepscope.models.memory.lifetimes import Lifetimes

MB = 1 << 20


def life(*rows: tuple[float, float, int]) -> Lifetimes:
    """Rows of begin, end and MB; `inf` is outside of the recording."""
    begin, end, size = (np.array(column) for column in zip(*rows, strict=True))
    begin = np.where(np.isinf(begin), -np.inf, begin)
    nothing = np.zeros(len(size), np.int64)
    return Lifetimes(size.astype(np.int64) * MB, begin.astype(float), end.astype(float), nothing, nothing)


def test_segments_are_rounded_up_and_kept() -> None:
    found = reserved(repeated(life((np.inf, np.inf, 100), (1, 2, 31), (3, 4, 33))))
    assert found.allocated_bytes == 134 * MB  # a rest of 1 MB stays in the block
    assert found.bytes == (100 + 32 + 34) * MB  # the first segment is too small for the second block
    assert (100 + 34) * MB <= found.needed_bytes <= (100 + 34 + 2) * MB  # where it has to be returned


def test_what_has_no_bytes_takes_no_segment() -> None:
    assert reserved(repeated(life((np.inf, np.inf, 100), (np.inf, np.inf, 0), (1, 2, 0)))).bytes == 100 * MB


def test_what_the_step_before_left_is_released_by_this_one() -> None:
    """Gradients that live until the next step are there once, not once a step."""
    step = life((np.inf, 5, 40), (10, np.inf, 40))
    assert reserved(repeated(step)).bytes == 40 * MB
    piled = life((10, np.inf, 40))  # nobody is seen to release it: it is replaced when made again
    assert reserved(repeated(piled)).bytes == 40 * MB


@pytest.mark.parametrize(("capacity", "runs"), [(139, True), (132, False)])
def test_a_step_runs_where_returned_segments_make_room(capacity: int, runs: bool) -> None:
    rows = life((np.inf, np.inf, 100), (1, 2, 31), (3, 4, 33))
    assert runs_in(repeated(rows), capacity * MB) is runs
