"""PyTorch's caching allocator, simulated: what it reserves for a sequence of allocations.

The smallest free block that fits is taken, and split if enough of it is left; a freed block merges
with its free neighbors. Small and large blocks live in pools of their own; a pool without a block
that fits gets a new segment, whose size is rounded up. Where the device is full, segments without a
block in use are returned, and the allocation is tried again.

Source: PyTorch, c10/cuda/CUDACachingAllocator.cpp, and docs/source/notes/cuda.rst, "Optimizing
memory usage with PYTORCH_CUDA_ALLOC_CONF".
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field

_MB = 1 << 20  # bytes
_BLOCK = 512  # bytes: `kMinBlockSize`, to which sizes are rounded up
_SMALL = _MB  # bytes: `kSmallSize`, the largest block of the small pool
_SMALL_SEGMENT = 2 * _MB  # bytes: `kSmallBuffer`
_LARGE_SEGMENT = 20 * _MB  # bytes: `kLargeBuffer`, of blocks up to `_OWN_SEGMENT`
_OWN_SEGMENT = 10 * _MB  # bytes: `kMinLargeAlloc`, from which on a block has a segment of its own
_ROUND_SEGMENT = 2 * _MB  # bytes: `kRoundLarge`


class CapacityExceeded(Exception):
    """The device has no room for an allocation, even after unused segments were returned."""


@dataclass(frozen=True)
class AllocatorSettings:
    """`PYTORCH_CUDA_ALLOC_CONF`, as far as it changes what is reserved."""

    max_split_bytes: int | None = None  # larger blocks are not split; None for no limit
    expandable: bool = False  # whether a pool is one segment that grows


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

    settings: AllocatorSettings = AllocatorSettings()
    capacity: int | None = None  # bytes that it may reserve; None for no limit
    reserved: int = 0  # bytes now
    allocated: int = 0  # bytes now
    peak_reserved: int = 0  # bytes, the most so far
    peak_allocated: int = 0  # bytes, the most so far
    retries: int = 0  # how often unused segments were returned to make room
    _blocks: dict[int, _Block] = field(default_factory=dict)
    _free: dict[bool, list[tuple[int, int]]] = field(default_factory=dict)
    _end: dict[bool, int] = field(default_factory=dict)
    _next: int = 0

    def allocate(self, size: int) -> int:
        """A block of at least `size` bytes, by its address.

        Raises:
            CapacityExceeded: if it exceeds the capacity.
        """
        size = max(_BLOCK, -(-size // _BLOCK) * _BLOCK)
        small = size <= _SMALL
        address = self._best_fit(small, size)
        if address is None:
            address = self._grow(small, size) if self.settings.expandable else self._new_segment(small, size)
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
        for small, blocks in self._free.items():
            whole = [address for _, address in blocks if self._is_segment(address)]
            for address in whole:
                self.reserved -= self._blocks[address].size
                self._take(address)
                del self._blocks[address]
                self._end.pop(small, None)

    def _is_segment(self, address: int) -> bool:
        block = self._blocks[address]
        return block.before is None and block.after is None

    def _best_fit(self, small: bool, size: int) -> int | None:
        blocks = self._free.setdefault(small, [])
        place = bisect_left(blocks, (size, -1))
        if place == len(blocks):
            return None
        found, address = blocks[place]
        if not small and self._too_large(found, size):
            return None
        blocks.pop(place)
        return address

    def _too_large(self, block: int, size: int) -> bool:
        """Blocks above the limit are kept for allocations of about their size."""
        limit = self.settings.max_split_bytes
        if limit is None:
            return False
        return size < limit <= block or (size >= limit and block >= size + _LARGE_SEGMENT)

    def _new_segment(self, small: bool, size: int) -> int:
        if small:
            room = _SMALL_SEGMENT
        else:
            room = _LARGE_SEGMENT if size < _OWN_SEGMENT else -(-size // _ROUND_SEGMENT) * _ROUND_SEGMENT
        self._reserve(room)
        address, self._next = self._next, self._next + room + _BLOCK  # segments never merge
        self._blocks[address] = _Block(room, small)
        return address

    def _grow(self, small: bool, size: int) -> int:
        """The free end of the pool's segment, grown by whole pages."""
        page = _SMALL_SEGMENT if small else _LARGE_SEGMENT
        last = self._end.get(small)
        free_end = last is not None and not self._blocks[last].used
        missing = size - (self._blocks[last].size if last is not None and free_end else 0)
        room = -(-missing // page) * page
        self._reserve(room)
        if last is not None and free_end:
            self._take(last)
            self._blocks[last].size += room
            return last
        address = self._next if last is None else last + self._blocks[last].size
        self._next += 1 << 46 if last is None else 0  # a reserved range of addresses for each pool
        self._blocks[address] = _Block(room, small, before=last)
        if last is not None:
            self._blocks[last].after = address
        self._end[small] = address
        return address

    def _reserve(self, room: int) -> None:
        if self.capacity is not None and self.reserved + room > self.capacity:
            self.release()
            self.retries += 1
            if self.reserved + room > self.capacity:
                raise CapacityExceeded(f"{room} bytes do not fit beside {self.reserved} of {self.capacity}")
        self.reserved += room
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def _split(self, small: bool, address: int, size: int) -> None:
        block = self._blocks[address]
        rest, limit = block.size - size, self.settings.max_split_bytes
        if small or self.settings.expandable:
            splits = rest >= _BLOCK
        else:
            splits = rest > _SMALL and (limit is None or size < limit)
        if not splits:
            return
        new = address + size
        self._blocks[new] = _Block(rest, small, before=address, after=block.after, used=False)
        if block.after is not None:
            self._blocks[block.after].before = new
        block.after, block.size = new, size
        if self._end.get(small) == address:
            self._end[small] = new
        self._put(new)

    def _merge(self, address: int, following: int) -> None:
        block, gone = self._blocks[address], self._blocks.pop(following)
        block.size += gone.size
        block.after = gone.after
        if gone.after is not None:
            self._blocks[gone.after].before = address
        if self._end.get(block.small) == following:
            self._end[block.small] = address

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

    Example:
        >>> replay([(1, 4 << 20), (2, 4 << 20), (1, -1), (3, 4 << 20)]).peak_reserved >> 20
        20
    """
    allocator = CachingAllocator(capacity=capacity)
    addresses: dict[int, int] = {}
    for key, size in changes:
        if size >= 0:
            addresses[key] = allocator.allocate(size)
        elif key in addresses:
            allocator.free(addresses.pop(key))
    return allocator
