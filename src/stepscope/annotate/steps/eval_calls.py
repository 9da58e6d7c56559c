"""Detect calls of a model that do not train it: validation, a rollout, sampling.

They run without gradients, so none of their operators has a sequence number, and the same model is
called with gradients in the same micro-batch. A model that never has gradients, such as a teacher,
is part of forward.
"""

from __future__ import annotations

import numpy as np

from stepscope.annotate.names.range_names import CODE
from stepscope.arrays import Codes8, Mask, Rows
from stepscope.trace.table import Table


def mark_eval_calls(events: Table, rows: Rows, stage: Codes8, loop: Mask) -> Codes8:
    """Change forward and loss that lead to no gradient to `other`, in one micro-batch.

    Args:
        events: all events.
        rows: the CPU events of the micro-batch, in order of start, shape (n,).
        stage: their known stages, -1 if unknown, shape (n,).
        loop: events on the thread of the training loop, shape (n,).

    Returns:
        int8, shape (n,).
    """
    start = events["start_ns"][rows]
    calls = _outermost(events, rows, loop & (stage == CODE["forward"]))
    recorded = _recorded_in(events, rows, loop, calls)
    name = events["name"][rows[calls]]
    eval_call = ~recorded & np.isin(name, name[recorded])
    if not eval_call.any():
        return stage
    begins = start[calls[eval_call]]
    ends = begins + events["duration_ns"][rows[calls[eval_call]]]
    latest = np.searchsorted(begins, start, side="right") - 1
    inside_eval = (latest >= 0) & (start < ends[latest])
    # The losses of a validation run between its calls and after the last one.
    inside_eval |= (start >= begins[0]) & (start < start[calls[recorded]][0])
    inside_eval &= loop & np.isin(stage, (CODE["forward"], CODE["loss"]))
    return np.where(inside_eval, CODE["other"], stage).astype(np.int8)


def _outermost(events: Table, rows: Rows, forward: Mask) -> Rows:
    """Positions of the outermost forward ranges."""
    ranges = np.flatnonzero(forward & events.text("category").take(rows).mask("annotation"))
    start = events["start_ns"][rows[ranges]]
    end = start + events["duration_ns"][rows[ranges]]
    reach = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(end)[:-1])
    return ranges[start >= reach[: len(ranges)]]


def _recorded_in(events: Table, rows: Rows, loop: Mask, calls: Rows) -> Mask:
    """Whether autograd recorded any operator in each call, bool, shape (calls,)."""
    recorded = loop & (events["sequence"][rows] >= 0) & (events["forward_thread"][rows] <= 0)
    at = events["start_ns"][rows[recorded]]
    start = events["start_ns"][rows[calls]]
    end = start + events["duration_ns"][rows[calls]]
    within: Mask = np.searchsorted(at, end) > np.searchsorted(at, start)
    return within
