"""Split a step into micro-batches: each has one forward and one backward pass.

Also covers the critic and the generator of a GAN, and a second loss. Position identifies a stage
only within a micro-batch: work after the first backward is not all backward.
"""

from __future__ import annotations

import numpy as np

from stepscope.annotate.names.range_names import CODE
from stepscope.arrays import Codes8, Mask, Rows
from stepscope.trace.table import Table


def split_micro_batches(
    events: Table, rows: Rows, stage: Codes8, unassigned: Mask, unmarked: Mask
) -> list[slice]:
    """Split a step where forward work follows backward (or optimizer) and leads to more backward.

    Args:
        events: all events.
        rows: the step's CPU events, in order of start, shape (n,).
        stage: their known stages, -1 if unknown, shape (n,).
        unassigned: events of the training loop's thread without a stage yet, shape (n,).
        unmarked: those of them that are forward work, shape (n,); see `unmarked_forward`.

    Returns:
        Slices of `rows` that together cover it, in order.
    """
    start = events["start_ns"][rows]
    end = start + events["duration_ns"][rows]
    closes = (stage == CODE["backward"]) | (stage == CODE["optimizer"])
    over = np.append(-1, np.maximum.accumulate(np.where(closes, end, -1))[:-1])
    backward = np.flatnonzero(stage == CODE["backward"])
    begins = (
        _leads_to_backward(events, rows, stage, unassigned, unmarked)
        & (over >= 0)
        & (over <= start)
    )
    begins &= np.arange(len(rows)) < backward.max(initial=-1)
    cuts = np.unique(np.searchsorted(start, over[begins])).tolist()
    return [slice(*pair) for pair in zip([0, *cuts], [*cuts, len(rows)], strict=True)]


def _leads_to_backward(
    events: Table, rows: Rows, stage: Codes8, unassigned: Mask, unmarked: Mask
) -> Mask:
    """Forward work on the training loop's thread: marked forward, or recognized without a mark."""
    on_loop = (
        events["track"][rows] == events["track"][rows[unassigned][:1]]
        if unassigned.any()
        else unassigned
    )
    marked: Mask = (stage == CODE["forward"]) & on_loop
    return marked | unmarked
