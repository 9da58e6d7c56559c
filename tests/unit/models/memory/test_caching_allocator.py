"""The simulated caching allocator: its documented rules, random histories, and real segments."""

from __future__ import annotations

import gzip
import pickle
import random
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from stepscope.models.memory.caching_allocator import CachingAllocator, CapacityExceeded, replay

KB, MB = 1 << 10, 1 << 20


@pytest.mark.parametrize(
    ("size", "reserved"),
    [
        (1, 2 * MB),  # small blocks share segments of 2 MB
        (MB, 2 * MB),
        (MB + 1, 20 * MB),  # up to 10 MB share segments of 20 MB
        (10 * MB - 512, 20 * MB),
        (10 * MB, 10 * MB),  # larger ones have their own, in steps of 2 MB
        (11 * MB, 12 * MB),
    ],
)
def test_a_new_segment_is_as_large_as_documented(size: int, reserved: int) -> None:
    allocator = CachingAllocator()
    allocator.allocate(size)
    assert allocator.reserved == reserved


def test_sizes_are_rounded_up_to_512_bytes() -> None:
    allocator = CachingAllocator()
    for _ in range(4096):
        allocator.allocate(1)
    assert (allocator.allocated, allocator.reserved) == (2 * MB, 2 * MB)


def test_the_smallest_block_that_fits_is_taken() -> None:
    allocator = CachingAllocator()
    large, small = allocator.allocate(40 * MB), allocator.allocate(30 * MB)
    allocator.free(large)
    allocator.free(small)
    assert allocator.allocate(24 * MB) == small
    assert allocator.reserved == 70 * MB


def test_a_large_block_is_split_if_more_than_a_megabyte_is_left() -> None:
    allocator = CachingAllocator()
    block = allocator.allocate(12 * MB)
    allocator.free(block)
    allocator.allocate(11 * MB)  # 1 MB is left: it stays part of the block
    assert allocator.allocated == 12 * MB
    other = CachingAllocator()
    other.free(other.allocate(14 * MB))
    other.allocate(11 * MB)
    assert other.allocated == 11 * MB


def test_freed_neighbors_merge_in_any_order() -> None:
    for order in ((0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2)):
        allocator = CachingAllocator()
        blocks = [allocator.allocate(6 * MB) for _ in range(3)]
        for place in order:
            allocator.free(blocks[place])
        allocator.allocate(9 * MB)
        allocator.allocate(9 * MB)
        assert allocator.reserved == 20 * MB


def test_unused_segments_are_returned_before_memory_runs_out() -> None:
    allocator = CachingAllocator(capacity=100 * MB)
    allocator.free(allocator.allocate(60 * MB))
    allocator.allocate(80 * MB)
    assert allocator.reserved == 80 * MB
    with pytest.raises(CapacityExceeded, match="do not fit beside"):
        allocator.allocate(30 * MB)


# 340 histories in all.
@pytest.mark.parametrize(
    "seed", [*range(20), *(pytest.param(n, marks=pytest.mark.full) for n in range(20, 340))]
)
def test_any_history_keeps_the_rules(seed: int) -> None:
    """Blocks never overlap, what is reserved is what blocks tile, and free neighbors are merged."""
    chance = random.Random(seed)
    allocator, held = CachingAllocator(), {}
    for _ in range(300):
        if held and chance.random() < 0.48:
            address = chance.choice(list(held))
            allocator.free(address)
            del held[address]
        else:
            size = int(2 ** chance.uniform(4, 27))
            held[allocator.allocate(size)] = size
        check(allocator, held)
    for address in list(held):
        allocator.free(address)
    assert allocator.allocated == 0
    allocator.release()
    assert allocator.reserved == 0


def check(allocator: CachingAllocator, held: dict[int, int]) -> None:
    blocks = sorted((address, block.size, block.used) for address, block in allocator._blocks.items())
    assert sum(size for _, size, _ in blocks) == allocator.reserved
    assert sum(size for _, size, used in blocks if used) == allocator.allocated
    assert all(allocator._blocks[address].size >= size for address, size in held.items())
    for (left, size, used), (right, _, also) in pairwise(blocks):
        assert left + size <= right
        touches = left + size == right and allocator._blocks[left].after == right
        assert not touches or used or also


class Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name}")


SNAPSHOT = Path(__file__).parents[4] / "benchmarks/gpu/results/nvidia-h200/resnet50.snapshot.pickle.gz"


def test_the_recorded_segments_of_real_snapshots_come_out(traces: Path) -> None:
    """Blocks that no allocation made were there before, and come first."""
    for path in (traces / "memory_snapshots" / "transformer_cuda.pickle", SNAPSHOT):
        changes, reserved = history(path)
        assert replay(changes).peak_reserved == pytest.approx(reserved, rel=0.015), path.name


def history(path: Path) -> tuple[list[tuple[int, int]], int]:
    """Allocations and releases, and the bytes of all segments; none was returned."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        snapshot = Plain(file).load()
    changes = [
        (event["addr"], event["size"] if event["action"] == "alloc" else -1)
        for trace in snapshot["device_traces"]
        for event in trace
        if event["action"] in ("alloc", "free_completed")
    ]
    made = {address for address, size in changes if size >= 0}
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    before = [one for one in blocks if one["state"] != "inactive" and one["address"] not in made]
    earlier = [(one["address"], one["size"]) for one in sorted(before, key=lambda one: -one["size"])]
    return unique([*earlier, *changes]), sum(one["total_size"] for one in snapshot["segments"])


def unique(changes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Addresses are used again: each allocation gets a number."""
    count: dict[int, int] = defaultdict(int)
    result = []
    for address, size in changes:
        count[address] += size >= 0
        result.append((hash((address, count[address])), size))
    return result
