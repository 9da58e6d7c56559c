"""Gaps between the runs of stages, many at once as one after the other."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.facts.annotate.stages.stage_runs import _close_gaps
from stepscope.trace.schema import STAGES

NONE, OTHER = -1, STAGES.index("other")
PIECES = st.lists(
    st.tuples(st.sampled_from([NONE, NONE, 0, 1, OTHER]), st.integers(0, 3), st.booleans()), min_size=1
)


def one_by_one(length: list[int], stage: list[int], waits: list[bool]) -> list[int]:
    """The rule of each gap, in order: what became of the gap before it counts."""
    aside = [False, *waits, False]
    result = list(stage)
    for index, value in enumerate(stage):
        if value != NONE:
            continue
        before = result[index - 1] if index else NONE
        after = stage[index + 1] if index + 1 < len(stage) else NONE
        short = length[index] <= 0.01 * max(sum(length), 1)
        same = before == after != NONE and not aside[index] and not aside[index + 2]
        if same or (short and after == NONE != before):
            result[index] = before
        else:
            result[index] = after if short and after != NONE else OTHER
    return result


@given(PIECES)
def test_gaps_are_closed_as_one_by_one(pieces: list[tuple[int, int, bool]]) -> None:
    """Lengths of 0 are short, others long."""
    stage, length = [piece[0] for piece in pieces], [10 * piece[1] for piece in pieces]
    waits = [piece[2] and piece[0] != NONE for piece in pieces]
    edges = np.cumsum([0, *length])
    found = _close_gaps(edges[:-1], np.array(stage), int(edges[-1]), np.array(waits))
    assert found.tolist() == one_by_one(length, stage, waits)
