"""What PyTorch's caching allocator reserves for recorded steps: their allocations, replayed.

The recorded steps are repeated until the reserved memory settles. What was there before them and
stays is allocated once, the largest first. What a step releases that it did not make is what the
step before left behind: an allocation of equal size that outlives it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np

from stepscope.base.arrays import Mask
from stepscope.models.memory.caching_allocator import AllocatorSettings, OutOfMemory, replay
from stepscope.models.memory.lifetimes import Lifetimes

CYCLES = 4  # of the recorded steps; chosen: reserved memory settles in two to three
MOST_REPLAYED = 50_000  # allocations of all cycles; chosen: replayed in a tenth of a second
_MB = 1 << 20  # bytes
History = Sequence[tuple[int, int]]


class Reserved(msgspec.Struct, frozen=True):
    """What an allocator would reserve, bytes.

    Attributes:
        bytes: the most that it reserves on a device with room for all of it.
        allocated_bytes: the most that is in use; the rest is fragmentation and cache.
        needed_bytes: the least memory in which the steps run; where less than `bytes` is there,
            unused segments are returned and reserved again.
    """

    bytes: int
    allocated_bytes: int
    needed_bytes: int


def reserved(life: Lifetimes, settings: AllocatorSettings | None = None, cycles: int = CYCLES) -> Reserved:
    """What the steps, so often repeated, reserve, and the least memory in which they run."""
    return replayed([*_changes(life, cycles)], settings)


def replayed(history: History, settings: AllocatorSettings | None = None) -> Reserved:
    """The same for allocations and releases in order of time, as `replay` takes them."""
    free = replay(history, settings)
    low, high = free.peak_allocated, free.peak_reserved
    while high - low > max(_MB, low >> 8):
        middle = (low + high) // 2
        low, high = (low, middle) if _runs(history, middle, settings) else (middle, high)
    return Reserved(free.peak_reserved, free.peak_allocated, high)


def reserved_bytes(life: Lifetimes) -> int:
    """The most that is reserved on a device with room for all of it."""
    return replay(_changes(life)).peak_reserved


def runs_in(life: Lifetimes, capacity: int) -> bool:
    """Whether the steps run where an allocator may reserve so many bytes."""
    return _runs([*_changes(life)], capacity)


def _runs(history: History, capacity: int, settings: AllocatorSettings | None = None) -> bool:
    try:
        replay(history, settings, capacity)
    except OutOfMemory:
        return False
    return True


def allocator_settings(recorded: Mapping[str, object]) -> AllocatorSettings:
    """The settings that change what is reserved, as a memory snapshot has them."""
    limit = recorded.get("max_split_size")
    is_limited = isinstance(limit, int) and 0 < limit < 1 << 60  # bytes: without one, the largest number
    return AllocatorSettings(limit if is_limited else None, bool(recorded.get("expandable_segments")))  # type: ignore[arg-type]


def _changes(life: Lifetimes, most: int = CYCLES) -> Iterator[tuple[int, int]]:
    """Allocations and releases of the repeated steps: keys and sizes, -1 for a release."""
    count, size = len(life), life.bytes.tolist()
    before, after = np.isneginf(life.start), np.isposinf(life.end)
    stays = np.flatnonzero(before & after)
    yield from ((int(row), size[row]) for row in stays[np.argsort(-life.bytes[stays], kind="stable")])
    left_by, made_again = _left_behind(life, before, after)
    moments = list(_moments(life, before))
    for cycle in range(1, 1 + max(1, min(most, MOST_REPLAYED // max(count, 1)))):
        for row, begins in moments:
            if not begins:
                key = (cycle - 1) * count + left_by.get(row, row) if before[row] else cycle * count + row
                yield key, -1
                continue
            if row in made_again:
                yield (cycle - 1) * count + row, -1
            yield cycle * count + row, size[row]


def _moments(life: Lifetimes, before: Mask) -> Iterator[tuple[int, bool]]:
    """Rows in order of time, and whether each begins then; releases come first at one moment."""
    begin, end = np.flatnonzero(~before), np.flatnonzero(np.isfinite(life.end))
    rows = np.concatenate([end, begin])
    order = np.lexsort((np.arange(len(rows)) >= len(end), np.concatenate([life.end[end], life.start[begin]])))
    begins = np.arange(len(rows)) >= len(end)
    yield from zip(rows[order].tolist(), begins[order].tolist(), strict=True)


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
