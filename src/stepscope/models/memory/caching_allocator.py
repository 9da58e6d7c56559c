"""PyTorch's caching allocator, simulated: what it reserves for a sequence of allocations.

The smallest free block that fits is taken, and split if enough of it is left; a freed block merges
with its free neighbors. Small and large blocks live in pools of their own; a pool without a block
that fits gets a new segment, whose size is rounded up. Where the device is full, segments without a
block in use are returned, and the allocation is tried again.

Source: PyTorch, c10/cuda/CUDACachingAllocator.cpp, and docs/source/notes/cuda.rst, "Optimizing
memory usage with PYTORCH_CUDA_ALLOC_CONF".
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from stepscope.base.arrays import Mask
from stepscope.models.memory.lifetimes import Lifetimes

_MB = 1 << 20  # bytes
BLOCK = 512  # bytes: `kMinBlockSize`, to which sizes are rounded up
_SMALL = _MB  # bytes: `kSmallSize`, the largest block of the small pool
SMALL_SEGMENT = 2 * _MB  # bytes: `kSmallBuffer`
LARGE_SEGMENT = 20 * _MB  # bytes: `kLargeBuffer`, of blocks up to `_OWN_SEGMENT`
_OWN_SEGMENT = 10 * _MB  # bytes: `kMinLargeAlloc`, from which on a block has a segment of its own
_ROUND_SEGMENT = 2 * _MB  # bytes: `kRoundLarge`


class CapacityExceeded(Exception):
    """The device has no room for an allocation, even after unused segments were returned."""


@dataclass(eq=False)
class _Block:
    size: int
    small: bool
    before: int | None = None
    after: int | None = None
    used: bool = True


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
    reserved: int = 0  # bytes now
    allocated: int = 0  # bytes now
    peak_reserved: int = 0  # bytes, the most so far
    peak_allocated: int = 0  # bytes, the most so far
    _blocks: dict[int, _Block] = field(default_factory=dict)
    _free: dict[bool, list[tuple[int, int]]] = field(default_factory=dict)
    _next: int = 0

    def allocate(self, size: int) -> int:
        """A block of at least `size` bytes, by its address; raises CapacityExceeded if it exceeds the
        capacity."""
        size = max(BLOCK, -(-size // BLOCK) * BLOCK)
        small = size <= _SMALL
        address = self._best_fit(small, size)
        if address is None:
            address = self._new_segment(small, size)
        self._split(small, address, size)
        block = self._blocks[address]
        block.used = True
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return address

    def free(self, address: int) -> None:
        """Return a block to its pool, merged with free neighbors."""
        block = self._blocks[address]
        block.used = False
        self.allocated -= block.size
        if block.after is not None and not self._blocks[block.after].used:
            self._take(block.after)
            self._merge(address, block.after)
        if block.before is not None and not self._blocks[block.before].used:
            self._take(block.before)
            address, merged = block.before, address
            self._merge(address, merged)
        self._put(address)

    def release(self) -> None:
        """Return all segments without a block in use, as `torch.cuda.empty_cache()` does."""
        for blocks in self._free.values():
            for size, address in list(blocks):
                block = self._blocks[address]
                if block.before is None and block.after is None:
                    self.reserved -= size
                    self._take(address)
                    del self._blocks[address]

    def _best_fit(self, small: bool, size: int) -> int | None:
        blocks = self._free.setdefault(small, [])
        place = bisect_left(blocks, (size, -1))
        if place == len(blocks):
            return None
        return blocks.pop(place)[1]

    def _new_segment(self, small: bool, size: int) -> int:
        if small:
            room = SMALL_SEGMENT
        else:
            room = LARGE_SEGMENT if size < _OWN_SEGMENT else -(-size // _ROUND_SEGMENT) * _ROUND_SEGMENT
        self._reserve(room)
        address, self._next = self._next, self._next + room + BLOCK  # segments never merge
        self._blocks[address] = _Block(room, small)
        return address

    def _reserve(self, room: int) -> None:
        if self.capacity is not None and self.reserved + room > self.capacity:
            self.release()
            if self.reserved + room > self.capacity:
                raise CapacityExceeded(f"{room} bytes do not fit beside {self.reserved} of {self.capacity}")
        self.reserved += room
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def _split(self, small: bool, address: int, size: int) -> None:
        block = self._blocks[address]
        rest = block.size - size
        if rest < BLOCK or (rest <= _SMALL and not small):
            return
        new = address + size
        self._blocks[new] = _Block(rest, small, before=address, after=block.after, used=False)
        if block.after is not None:
            self._blocks[block.after].before = new
        block.after, block.size = new, size
        self._put(new)

    def _merge(self, address: int, following: int) -> None:
        block, gone = self._blocks[address], self._blocks.pop(following)
        block.size += gone.size
        block.after = gone.after
        if gone.after is not None:
            self._blocks[gone.after].before = address

    def _put(self, address: int) -> None:
        block = self._blocks[address]
        insort(self._free.setdefault(block.small, []), (block.size, address))

    def _take(self, address: int) -> None:
        block = self._blocks[address]
        blocks = self._free[block.small]
        blocks.pop(bisect_left(blocks, (block.size, address)))


def replay(changes: Iterable[tuple[int, int]], capacity: int | None = None) -> CachingAllocator:
    """The allocator after allocations and releases.

    Args:
        changes: in order of time: a key and a size in bytes for an allocation, a key and -1 for its
            release. Releases of unknown keys are of blocks from before, and count for nothing.

    Raises:
        CapacityExceeded: if an allocation exceeds the capacity.
    """
    allocator = CachingAllocator(capacity=capacity)
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
