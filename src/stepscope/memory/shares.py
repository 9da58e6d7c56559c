"""What kinds, lines, stages or modules hold of some allocations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.arrays import Codes, Counts, Ids


@dataclass(frozen=True)
class MemoryShare:
    """What a kind or a line holds at the peak."""

    name: str
    bytes: int
    count: int


def shares(size: Counts, group: Codes | Ids, names: Sequence[str]) -> tuple[MemoryShare, ...]:
    """The groups that hold something, the largest first; what is in none is a row without a name.

    Args:
        size: bytes of each allocation, shape (n,).
        group: position in `names` of each, -1 for none, shape (n,).
        names: of the groups.

    Example:
        >>> shares(np.array([1, 2, 4]), np.array([0, 1, 0]), ("weights", "inputs"))[0]
        MemoryShare(name='weights', bytes=5, count=2)
    """
    keys, place = np.unique(group, return_inverse=True)
    total = np.bincount(place, size, len(keys)).astype(np.int64)
    count = np.bincount(place, minlength=len(keys))
    order = [row for row in np.argsort(-total, kind="stable").tolist() if total[row]]
    return tuple(
        MemoryShare(names[keys[row]] if keys[row] >= 0 else "", int(total[row]), int(count[row]))
        for row in order
    )
