"""Calls of a model beside those that train it: validation, a rollout, a sample that is looked at.

They run without gradients, so that none of their operators has a sequence number, and the model is
called with gradients in the same turn. A model that never is, as a teacher, is part of forward.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.annotate.marks import CODE
from stepscope.trace.table import Table

Codes = NDArray[np.int8]
Mask = NDArray[np.bool_]
Rows = NDArray[np.intp]


def set_asides_apart(events: Table, rows: Rows, stage: Codes, loop: Mask) -> Codes:
    """The stages of a turn, where forward and loss that lead to no gradient are other.

    Args:
        events: all events.
        rows: the turn's CPU events, in order of start, shape (n,).
        stage: what is known of them, -1 where nothing, shape (n,).
        loop: those of the training loop's thread, shape (n,).

    Returns:
        int8, shape (n,).
    """
    start = events["start_ns"][rows]
    calls = _outermost(events, rows, loop & (stage == CODE["forward"]))
    recorded = _recorded_in(events, rows, loop, calls)
    name = events["name"][rows[calls]]
    aside = ~recorded & np.isin(name, name[recorded])
    if not aside.any():
        return stage
    begins = start[calls[aside]]
    ends = begins + events["duration_ns"][rows[calls[aside]]]
    latest = np.searchsorted(begins, start, side="right") - 1
    apart = (latest >= 0) & (start < ends[latest])
    # The losses of a validation stand between its calls, and behind the last of them.
    apart |= (start >= begins[0]) & (start < start[calls[recorded]][0])
    apart &= loop & np.isin(stage, (CODE["forward"], CODE["loss"]))
    return np.where(apart, CODE["other"], stage).astype(np.int8)


def _outermost(events: Table, rows: Rows, forward: Mask) -> Rows:
    """Positions of the ranges of forward that lie in no other one."""
    ranges = np.flatnonzero(forward & events.text("category").mask("annotation")[rows])
    start = events["start_ns"][rows[ranges]]
    end = start + events["duration_ns"][rows[ranges]]
    reach = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(end)[:-1])
    return ranges[start >= reach[: len(ranges)]]


def _recorded_in(events: Table, rows: Rows, loop: Mask, calls: Rows) -> Mask:
    """Whether autograd recorded any operator in each of some calls, bool, shape (calls,)."""
    recorded = loop & (events["sequence"][rows] >= 0) & (events["forward_thread"][rows] <= 0)
    at = events["start_ns"][rows[recorded]]
    start = events["start_ns"][rows[calls]]
    end = start + events["duration_ns"][rows[calls]]
    within: Mask = np.searchsorted(at, end) > np.searchsorted(at, start)
    return within
