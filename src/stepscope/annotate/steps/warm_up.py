"""Exclude a first step that warms up from means over the steps."""

from __future__ import annotations

import numpy as np

from stepscope.arrays import Mask
from stepscope.trace.table import Table

WARM_UP_RATIO = 3
ITERATION = "iteration"  # evidence of a step that is an iteration of a server
_MIN_STEPS = 3


def steady_steps(steps: Table) -> Mask:
    """Steps that count for means: all but a rank's first if it takes over three medians.

    With fewer than three steps none is excluded: nothing shows which one is typical. Nor is an
    iteration of a server, since one with a long prompt takes longer than those after it.

    Args:
        steps: the table `steps`, of any ranks.

    Returns:
        bool, shape (steps,).
    """
    length = steps["end_ns"] - steps["start_ns"]
    keep = np.ones(len(steps), np.bool_)
    for rank in np.unique(steps["rank"][~steps.text("evidence").mask(ITERATION)]):
        of_rank = np.flatnonzero(steps["rank"] == rank)
        first = length[of_rank[0]]
        if len(of_rank) >= _MIN_STEPS and first > WARM_UP_RATIO * np.median(length[of_rank]):
            keep[of_rank[0]] = False
    return keep
