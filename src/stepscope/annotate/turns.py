"""The turns of a step: forward and backward several times over before the step ends.

Micro-batches whose gradients add up, the critic and the generator of a GAN, a second loss. What a
stage's place tells, it tells within a turn: work behind the first backward is not all backward.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.annotate.marks import CODE
from stepscope.trace.table import Table

Codes = NDArray[np.int8]
Mask = NDArray[np.bool_]
Rows = NDArray[np.intp]


def turns(events: Table, rows: Rows, stage: Codes, loose: Mask) -> list[slice]:
    """Cut a step where forward work follows backward (or optimizer) and leads to more of it.

    Args:
        events: all events.
        rows: the step's CPU events, in order of start, shape (n,).
        stage: what is known of them, -1 where nothing, shape (n,).
        loose: events of the training loop's thread whose stage is to be told, shape (n,).

    Returns:
        Slices of `rows`, in order, that together are all of it.
    """
    start = events["start_ns"][rows]
    end = start + events["duration_ns"][rows]
    closes = (stage == CODE["backward"]) | (stage == CODE["optimizer"])
    over = np.append(-1, np.maximum.accumulate(np.where(closes, end, -1))[:-1])
    backward = np.flatnonzero(stage == CODE["backward"])
    begins = leads_to_backward(events, rows, stage, loose) & (over >= 0) & (over <= start)
    begins &= np.arange(len(rows)) < backward.max(initial=-1)
    cuts = np.unique(np.searchsorted(start, over[begins])).tolist()
    return [slice(*pair) for pair in zip([0, *cuts], [*cuts, len(rows)], strict=True)]


def leads_to_backward(events: Table, rows: Rows, stage: Codes, loose: Mask) -> Mask:
    """Forward work of the training loop's thread: marked as such, or what backward returns to."""
    partners = events["forward_event"][rows]
    returned_to = np.isin(rows, partners[partners >= 0], kind="table")
    on_loop = events["track"][rows] == events["track"][rows[loose][:1]] if loose.any() else loose
    result: Mask = (returned_to & loose) | ((stage == CODE["forward"]) & on_loop)
    return result
