"""Ranks that do the same work, and how long that usually takes."""

from __future__ import annotations

import numpy as np

from stepscope.arrays import Floats, Ids


def usual_of_peers(busy: Floats, group: Ids) -> Floats:
    """The median time in each rank's group; of two ranks the shorter.

    Args:
        busy: how long each rank works, shape (ranks,).
        group: a number for each rank, the same for peers, shape (ranks,).

    Example:
        >>> usual_of_peers(np.array([1.0, 2.0, 9.0, 5.0]), np.array([0, 0, 0, 1])).tolist()
        [2.0, 2.0, 2.0, 5.0]
    """
    result = busy.copy()
    for number in np.unique(group).tolist():
        members = group == number
        result[members] = np.sort(busy[members])[(int(members.sum()) - 1) // 2]
    return result
