"""The first step of a recording, where it warms up: no mean over the steps is to hold it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.trace.table import Table

WARMING = 3
_LEAST_STEPS = 3


def settled(steps: Table) -> NDArray[np.bool_]:
    """Which steps tell what a step takes: all but a rank's first if that takes over 3 medians.

    Of fewer than three steps none is left out: nobody knows which of them is the usual one.

    Args:
        steps: the table `steps`, of any ranks.

    Returns:
        bool, shape (steps,).
    """
    length = steps["end_ns"] - steps["start_ns"]
    keep = np.ones(len(steps), np.bool_)
    for rank in np.unique(steps["rank"]):
        mine = np.flatnonzero(steps["rank"] == rank)
        if len(mine) >= _LEAST_STEPS and length[mine[0]] > WARMING * np.median(length[mine]):
            keep[mine[0]] = False
    return keep
