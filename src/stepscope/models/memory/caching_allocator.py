"""PyTorch's caching allocator, simulated: what it reserves for a sequence of allocations.

The smallest free block that fits is taken, and split if enough of it is left; a freed block merges
with its free neighbors. Small and large blocks live in pools of their own; a pool without a block
that fits gets a new segment, whose size is rounded up. Where the device is full, segments without a
block in use are returned, and the allocation is tried again.

With `expandable_segments` a pool is one segment that grows by pages at the lowest place with room,
and whole free pages are returned. Streams, private pools and `garbage_collection_threshold`, which
needs a limit that no file states, are left out.

Source: PyTorch, c10/cuda/CUDACachingAllocator.cpp, c10/core/AllocatorConfig.cpp, and
docs/source/notes/cuda.rst, "Optimizing memory usage with PYTORCH_CUDA_ALLOC_CONF".
"""

import re
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from math import inf
from typing import Any

import numpy as np

from stepscope.base.arrays import Mask
from stepscope.models.memory.lifetimes import Lifetimes
from stepscope.trace.trace import Trace

_MB = 1 << 20  # bytes
BLOCK = 512  # bytes: `kMinBlockSize`, to which sizes are rounded up
_SMALL = _MB  # bytes: `kSmallSize`, the largest block of the small pool
_SMALL_SEGMENT = 2 * _MB  # bytes: `kSmallBuffer`, also a page of an expandable segment
_LARGE_SEGMENT = 20 * _MB  # bytes: `kLargeBuffer`, of blocks up to `_OWN_SEGMENT`; also a page
_OWN_SEGMENT = 10 * _MB  # bytes: `kMinLargeAlloc`, from which on a block has a segment of its own
_ROUND_SEGMENT = 2 * _MB  # bytes: `kRoundLarge`
_MOST_PAGES = 1 << 30  # of an expandable segment; chosen: more than any device has
_POWERS = 16  # `kRoundUpPowerOfTwoIntervals`: of two, from 1 MB on; the last counts for all above
_DIVISIONS = re.compile(r"roundup_power2_divisions:(?:(\d+)|\[([^]]*)\])")


@dataclass(frozen=True)
class Settings:
    """The settings of `PYTORCH_ALLOC_CONF` that change what is reserved."""

    expandable: bool = False  # `expandable_segments`
    largest_split: float = inf  # bytes: blocks of this size or more stay whole, `max_split_size_mb`
    slack: int = _LARGE_SEGMENT  # bytes that one of those may be too large, `max_non_split_rounding_mb`
    large_segment: int = _LARGE_SEGMENT  # bytes, `large_segment_size_mb`
    # into how many steps each power of two from 1 MB on is divided, `roundup_power2_divisions`
    divisions: tuple[int, ...] = (0,) * _POWERS
    collects: bool = False  # whether unused segments may go early, `garbage_collection_threshold`

    @classmethod
    def of(cls, stated: Mapping[str, Any]) -> "Settings":
        """Those of a snapshot's `allocator_settings`, or of the environment.

        Example:
            >>> Settings.of({"PYTORCH_ALLOC_CONF": "expandable_segments:True"}).expandable
            True
        """
        text = str(stated.get("PYTORCH_ALLOC_CONF") or stated.get("PYTORCH_CUDA_ALLOC_CONF") or "")
        text = text.replace(" ", "")
        size = {name: max(int(number), 1) * _MB for name, number in re.findall(r"(\w+)_mb:(\d+)", text)}
        return cls(
            # PyTorch resets all but this one to their defaults with each text that it is given.
            bool(stated.get("expandable_segments", "expandable_segments:True" in text)),
            size.get("max_split_size", inf),
            size.get("max_non_split_rounding", _LARGE_SEGMENT),
            size.get("large_segment_size", _LARGE_SEGMENT),
            _divisions(text),
            "garbage_collection_threshold" in text,
        )

    @classmethod
    def of_trace(cls, trace: Trace) -> "Settings":
        """Those of the recorded process, the defaults where the file does not say."""
        return cls.of(trace.metadata.properties.get("allocator_settings") or {})

    def rounded(self, size: int) -> int:
        """The bytes that an allocation takes."""
        power, step = size.bit_length() - 1, BLOCK
        steps = self.divisions[min(max(power - 20, 0), _POWERS - 1)]  # 1 MB is two to the 20
        if steps > 1 and size > steps * BLOCK:
            step = (1 << power) >> (steps.bit_length() - 1)
        return -(-size // step) * step

    def page(self, small: bool) -> int:
        """The bytes of a segment that blocks share, or by which an expandable one grows."""
        return _SMALL_SEGMENT if small else self.large_segment


def _divisions(text: str) -> tuple[int, ...]:
    """Of each power of two: `8` for all, or `[256:1,512:2,>:4]` from so many MB on, the first below, too."""
    found, result, last = _DIVISIONS.search(text), [0] * _POWERS, -1
    for bound, steps in re.findall(r"(\d+|>):(\d+)", found[2] or f">:{found[1]}") if found else ():
        first, is_rest = last + 1, bound == ">"
        last = _POWERS - 1 if is_rest else min(int(bound).bit_length() - 1, _POWERS - 1)
        for power in range(first if is_rest or first == 0 else last, last + 1):
            result[power] = int(steps)
    return tuple(result)


class CapacityExceeded(Exception):
    """The device has no room for an allocation, even after unused segments were returned."""


class _Pieces:
    """Addresses that nothing uses, merged where they touch: by size, and by where they begin and end."""

    def __init__(self) -> None:
        self.by_size: list[tuple[int, int]] = []  # size and begin of each, ascending
        self.size: dict[int, int] = {}  # by begin
        self.begin: dict[int, int] = {}  # by end

    def add(self, begin: int, size: int) -> None:
        if begin in self.begin:
            begin = self.begin[begin]
            size += self.take(begin)
        if begin + size in self.size:
            size += self.take(begin + size)
        insort(self.by_size, (size, begin))
        self.size[begin], self.begin[begin + size] = size, begin

    def take(self, begin: int) -> int:
        """Take a piece out; its size."""
        size = self.size.pop(begin)
        del self.begin[begin + size]
        self.by_size.pop(bisect_left(self.by_size, (size, begin)))
        return size


@dataclass(eq=False)
class CachingAllocator:
    """The allocator of one device.

    Example:
        >>> allocator = CachingAllocator()
        >>> block = allocator.allocate(3 << 20)
        >>> allocator.reserved >> 20
        20
    """

    capacity: int | None = None  # bytes that it may reserve; None for no limit
    settings: Settings = Settings()
    reserved: int = 0  # bytes now
    allocated: int = 0  # bytes now
    peak_reserved: int = 0  # bytes, the most so far
    peak_allocated: int = 0  # bytes, the most so far
    _used: dict[int, tuple[int, bool]] = field(default_factory=dict)  # size of each block, and if small
    # by whether they are small: what is free, and addresses of expandable segments without memory
    _free: dict[bool, _Pieces] = field(default_factory=lambda: defaultdict(_Pieces))
    _unmapped: dict[bool, _Pieces] = field(default_factory=lambda: defaultdict(_Pieces))
    _segments: dict[int, int] = field(default_factory=dict)  # the size of each that is not expandable
    _next: int = 0

    def allocate(self, size: int) -> int:
        """A block of at least `size` bytes, by its address; raises CapacityExceeded if it exceeds the
        capacity."""
        size = self.settings.rounded(max(size, 1))
        small = size <= _SMALL
        address = self._best_fit(small, size)
        if address is None:
            obtain = self._grow if self.settings.expandable else self._new_segment
            try:
                address = obtain(small, size)
            except CapacityExceeded:
                self.release()
                address = obtain(small, size)
        rest = self._free[small].take(address) - size
        stays_whole = rest <= _SMALL or size >= self.settings.largest_split
        if rest and (small or self.settings.expandable or not stays_whole):
            self._free[small].add(address + size, rest)
        else:
            size += rest
        self._used[address] = size, small
        self.allocated += size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return address

    def free(self, address: int) -> None:
        """Return a block to its pool, merged with free neighbors."""
        size, small = self._used.pop(address)
        self.allocated -= size
        self._free[small].add(address, size)

    def release(self) -> None:
        """Return segments, or pages, without a block in use, as `torch.cuda.empty_cache()` does."""
        for small, free in self._free.items():
            page = self.settings.page(small)
            for begin, size in [*free.size.items()]:
                end = begin + size
                first, last = -(-begin // page) * page, end // page * page
                if not self.settings.expandable:
                    first, last = begin, end if self._segments.get(begin) == size else begin
                if first < last:
                    free.take(begin)
                    for rest, until in ((begin, first), (last, end)):
                        if rest < until:
                            free.add(rest, until - rest)
                    self._unmapped[small].add(first, last - first)
                    self.reserved -= last - first

    def _best_fit(self, small: bool, size: int) -> int | None:
        pieces, unmapped = self._free[small].by_size, self._unmapped[small].size
        place = bisect_left(pieces, (size, -1))
        if self.settings.expandable:  # a piece that can grow counts as what it can become
            most = (piece + unmapped.get(begin + piece, 0) for piece, begin in pieces[place:])
            place += sum(1 for _ in takewhile(lambda two: two[1] < two[0], pairwise(most)))
        limit = self.settings.largest_split
        largest = limit if size < limit else size + self.settings.slack
        return pieces[place][1] if place < len(pieces) and pieces[place][0] < largest else None

    def _new_segment(self, small: bool, size: int) -> int:
        has_own = size >= _OWN_SEGMENT
        room = -(-size // _ROUND_SEGMENT) * _ROUND_SEGMENT if has_own else self.settings.page(small)
        self._reserve(room)
        address, self._next = self._next, self._next + room + BLOCK  # segments never merge
        self._segments[address] = room
        self._free[small].add(address, room)
        return address

    def _grow(self, small: bool, size: int) -> int:
        """The lowest room of the expandable segment that is large enough, with memory behind it."""
        free, unmapped, page = self._free[small], self._unmapped[small], self.settings.page(small)
        if not unmapped.size:  # the pools lie apart
            unmapped.add(0 if small else page * _MOST_PAGES, page * _MOST_PAGES)
        rooms = (free.begin.get(begin, begin) for begin in sorted(unmapped.size))
        address = next(begin for begin in rooms if self._room(small, begin) >= size)
        while (mapped := free.size.get(address, 0)) < size:
            begin = address + mapped
            room = unmapped.size[begin]
            more = min(-(-(size - mapped) // page) * page, room)
            self._reserve(more)
            unmapped.take(begin)
            if more < room:
                unmapped.add(begin + more, room - more)
            free.add(begin, more)
        return address

    def _room(self, small: bool, begin: int) -> int:
        """How much is not in use from an address on, with or without memory behind it."""
        end = begin
        while more := self._free[small].size.get(end) or self._unmapped[small].size.get(end):
            end += more
        return end - begin

    def _reserve(self, room: int) -> None:
        if self.capacity is not None and self.reserved + room > self.capacity:
            raise CapacityExceeded(f"{room} bytes do not fit next to {self.reserved} of {self.capacity}")
        self.reserved += room
        self.peak_reserved = max(self.peak_reserved, self.reserved)


def replay(
    changes: Iterable[tuple[int, int]], settings: Settings, capacity: int | None = None
) -> CachingAllocator:
    """The allocator after allocations and releases.

    Args:
        changes: in order of time: a key and a size in bytes for an allocation, a key and -1 for its
            release. Releases of unknown keys are of blocks from before, and count for nothing.

    Raises:
        CapacityExceeded: if an allocation exceeds the capacity.
    """
    allocator = CachingAllocator(capacity, settings)
    addresses: dict[int, int] = {}
    for key, size in changes:
        if size > 0:  # PyTorch allocates nothing for a tensor without elements
            addresses[key] = allocator.allocate(size)
        elif key in addresses:
            allocator.free(addresses.pop(key))
    return allocator


_CYCLES = 4  # of the recorded steps; chosen: reserved memory settles in two to three
_MOST = 50_000  # allocations of all cycles; chosen: replayed in a tenth of a second

History = Sequence[tuple[int, int]]


# -- recorded steps, repeated until the reserved memory settles


def least_reserved(history: History, settings: Settings) -> tuple[int, int]:
    """The most bytes in use, and the least memory in which allocations and releases succeed: where less
    is there than an allocator would reserve, unused segments are returned and reserved again."""
    free = replay(history, settings)
    low, high = free.peak_allocated, free.peak_reserved
    while high - low > max(_MB, low >> 8):
        middle = (low + high) // 2
        low, high = (low, middle) if runs_in(history, settings, middle) else (middle, high)
    return free.peak_allocated, high


def runs_in(history: History, settings: Settings, capacity: int) -> bool:
    """Whether they succeed where an allocator may reserve so many bytes."""
    try:
        replay(history, settings, capacity)
    except CapacityExceeded:
        return False
    return True


def repeated(life: Lifetimes) -> History:
    """Allocations and releases of the steps, some times: keys and sizes, -1 for a release.

    What was there before them and stays is allocated once, the largest first. What a step releases
    that it did not make is what the step before left behind: one of equal size that outlives it.
    """
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
