"""What lives at a moment: allocations of one kind, module and line together, the largest first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.arrays import Codes, Ids, Rows
from stepscope.memory.over_time.history import MemoryHistory


@dataclass(frozen=True)
class Living:
    """Allocations of one kind, module and line.

    Attributes:
        kind, module, line: positions in the names of the history's groupings, -1 where unknown.
        bytes: of all of them.
        count: how many; 0 if that is unknown.
        largest: bytes of the largest.
    """

    kind: int
    module: int
    line: int
    bytes: int
    count: int
    largest: int


def living_at(history: MemoryHistory, count: int) -> list[Living]:
    """What lives after so many changes, the largest first.

    Args:
        history: of a device.
        count: number of changes, as `Changes.count_until` gives it.
    """
    rows = history.changes.holding(count)
    if history.life is None:
        held = history.changes.held(count)
        found = [Living(int(row), -1, -1, int(held[row]), 0, 0) for row in rows]
        return sorted(found, key=lambda one: -one.bytes)
    return _grouped(history, rows, history.life.bytes[rows])


def _grouped(history: MemoryHistory, rows: Rows, size: Ids) -> list[Living]:
    parts = [_codes(history, by, rows) for by in ("kind", "module", "line")]
    keys, group = np.unique(np.stack(parts), axis=1, return_inverse=True)
    group = group.ravel()
    total = np.bincount(group, size, keys.shape[1]).astype(np.int64)
    count = np.bincount(group, minlength=keys.shape[1])
    largest = np.zeros(keys.shape[1], np.int64)
    np.maximum.at(largest, group, size)
    order = np.argsort(-total, kind="stable").tolist()
    return [
        Living(
            kind=int(keys[0, one]),
            module=int(keys[1, one]),
            line=int(keys[2, one]),
            bytes=int(total[one]),
            count=int(count[one]),
            largest=int(largest[one]),
        )
        for one in order
    ]


def _codes(history: MemoryHistory, by: str, rows: Rows) -> Codes | Ids:
    grouping = history.groupings.get(by)
    return np.full(len(rows), -1, np.int64) if grouping is None else grouping.code[rows]
