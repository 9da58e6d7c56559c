"""What PyTorch's caching allocator reserves for recorded steps: their allocations, replayed.

The recorded steps are repeated until the reserved memory settles. What was there before them and
stays is allocated once, the largest first. What a step releases that it did not make is what the
step before left behind: an allocation of equal size that outlives it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from stepscope.base.arrays import Mask
from stepscope.models.memory.caching_allocator import CapacityExceeded, replay
from stepscope.models.memory.lifetimes import Lifetimes

_CYCLES = 4  # of the recorded steps; chosen: reserved memory settles in two to three
_MOST = 50_000  # allocations of all cycles; chosen: replayed in a tenth of a second
_MB = 1 << 20  # bytes
History = Sequence[tuple[int, int]]


class Reserved(msgspec.Struct, frozen=True):
    """What an allocator would reserve, bytes."""

    bytes: int  # the most that it reserves on a device with room for all of it
    allocated_bytes: int  # the most that is in use; the rest is fragmentation and cache
    # the least memory in which the steps run; where less than `bytes` is there, unused segments are
    # returned and reserved again
    needed_bytes: int


def reserved(history: History) -> Reserved:
    """What allocations and releases, as `replay` takes them, reserve, and the least that they need."""
    free = replay(history)
    low, high = free.peak_allocated, free.peak_reserved
    while high - low > max(_MB, low >> 8):
        middle = (low + high) // 2
        low, high = (low, middle) if runs_in(history, middle) else (middle, high)
    return Reserved(free.peak_reserved, free.peak_allocated, high)


def runs_in(history: History, capacity: int) -> bool:
    """Whether they succeed where an allocator may reserve so many bytes."""
    try:
        replay(history, capacity=capacity)
    except CapacityExceeded:
        return False
    return True


def repeated(life: Lifetimes) -> History:
    """Allocations and releases of the steps, some times: keys and sizes, -1 for a release."""
    return [*_changes(life, max(1, min(_CYCLES, _MOST // max(len(life), 1))))]


def _changes(life: Lifetimes, cycles: int) -> Iterator[tuple[int, int]]:
    count, size = len(life), life.bytes.tolist()
    before, after = np.isneginf(life.start), np.isposinf(life.end)
    stays = np.flatnonzero(before & after)
    yield from ((int(row), size[row]) for row in stays[np.argsort(-life.bytes[stays], kind="stable")])
    left_by, made_again = _left_behind(life, before, after)
    _, rows, begin = life.moments()
    moments = list(zip(rows.tolist(), begin.tolist(), strict=True))
    for base in range(count, (1 + cycles) * count, count):
        for row, begins in moments:
            if begins:
                if row in made_again:
                    yield base - count + row, -1
                yield base + row, size[row]
            else:
                yield base - count + left_by.get(row, row) if before[row] else base + row, -1


def _left_behind(life: Lifetimes, before: Mask, after: Mask) -> tuple[dict[int, int], set[int]]:
    """Which row of the cycle before each row from before it is; and the rows that outlive a cycle
    and whose release is in none: each is released when it is made again."""
    of_size: dict[int, list[int]] = defaultdict(list)
    for row in np.flatnonzero(~before & after)[::-1].tolist():
        of_size[int(life.bytes[row])].append(row)
    left: dict[int, int] = {}
    for row in np.flatnonzero(before & ~after).tolist():
        if rows := of_size[int(life.bytes[row])]:
            left[row] = rows.pop()
    return left, {row for rows in of_size.values() for row in rows}
