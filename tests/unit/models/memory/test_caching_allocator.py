"""The simulated caching allocator: its documented rules, random histories, and real segments."""

from __future__ import annotations

import gzip
import pickle
import random
from collections import defaultdict
from itertools import count, groupby, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stepscope.models.memory.caching_allocator import CachingAllocator, CapacityExceeded, Settings, replay
from stepscope.trace.trace import Metadata, Trace

KB, MB = 1 << 10, 1 << 20
EXPANDABLE = Settings(expandable=True)


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
    with pytest.raises(CapacityExceeded, match="do not fit next to"):
        allocator.allocate(30 * MB)


# -- settings


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({}, Settings()),
        (None, Settings()),
        (
            {"expandable_segments": False, "max_split_size": -1, "garbage_collection_threshold": 0.0},
            Settings(),
        ),
        ({"expandable_segments": True, "PYTORCH_CUDA_ALLOC_CONF": ""}, EXPANDABLE),
        (
            {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64, max_non_split_rounding_mb:30"},
            Settings(largest_split=64 * MB, slack=30 * MB),
        ),
        ({"PYTORCH_CUDA_ALLOC_CONF": "large_segment_size_mb:40"}, Settings(large_segment=40 * MB)),
        ({"PYTORCH_CUDA_ALLOC_CONF": "garbage_collection_threshold:0.8"}, Settings(collects=True)),
        ({"PYTORCH_ALLOC_CONF": "roundup_power2_divisions:8"}, Settings(divisions=(8,) * 16)),
        (  # as PyTorch's own test of these has it
            {"PYTORCH_ALLOC_CONF": "roundup_power2_divisions:[64:8,128:2,256:4,512:2,1024:4,>:1]"},
            Settings(divisions=(*[8] * 7, 2, 4, 2, 4, *[1] * 5)),
        ),
        ({"PYTORCH_ALLOC_CONF": "roundup_power2_divisions:[],max_split_size_mb:x"}, Settings()),
    ],
)
def test_settings_are_read_as_a_snapshot_or_the_environment_states_them(
    stated: dict[str, Any] | None, expected: Settings
) -> None:
    trace = Trace({}, Metadata(properties={"allocator_settings": stated}))
    assert Settings.of_trace(trace) == expected


@pytest.mark.parametrize(
    ("size", "reserved"),
    [
        (1, 2 * MB),
        (MB + 1, 20 * MB),  # each pool grows by pages: of 2 MB, and of 20 MB
        (10 * MB, 20 * MB),
        (41 * MB, 60 * MB),
    ],
)
def test_an_expandable_segment_grows_by_pages(size: int, reserved: int) -> None:
    allocator = CachingAllocator(settings=EXPANDABLE)
    allocator.allocate(size)
    assert allocator.reserved == reserved


def test_a_growing_batch_fits_into_what_smaller_ones_left() -> None:
    """What the setting is for: each size leaves a segment that is too small for the next."""
    sizes = range(20 * MB, 60 * MB, 2 * MB)
    plain, expandable = (
        replay([change for size in sizes for change in ((size, size), (size, -1))], settings)
        for settings in (Settings(), EXPANDABLE)
    )
    assert plain.peak_reserved == sum(sizes)
    assert expandable.peak_reserved == 60 * MB


def test_whole_free_pages_are_returned_beside_blocks_in_use() -> None:
    allocator = CachingAllocator(capacity=100 * MB, settings=EXPANDABLE)
    _first, hole, last = (allocator.allocate(size * MB) for size in (10, 60, 10))
    allocator.free(hole)
    allocator.release()  # pages 1 and 2 of 4 hold nothing
    assert allocator.reserved == 40 * MB
    allocator.allocate(60 * MB)  # at the lowest place with room: the hole, whose pages come back
    assert allocator.reserved == 80 * MB
    allocator.free(last)
    with pytest.raises(CapacityExceeded, match="do not fit next to"):
        allocator.allocate(60 * MB)


def test_blocks_that_are_not_split_serve_no_smaller_size() -> None:
    allocator = CachingAllocator(settings=Settings(largest_split=64 * MB))
    large = allocator.allocate(100 * MB)
    allocator.free(large)
    assert allocator.allocate(30 * MB) != large  # too small for it
    assert allocator.allocate(70 * MB) != large  # more than 20 MB would be lost
    assert allocator.allocate(90 * MB) == large
    assert allocator.allocated == (30 + 70 + 100) * MB


@pytest.mark.parametrize(
    ("divisions", "size", "block"),
    [
        (4, 1200 * KB, 1280 * KB),
        (4, 1024 * KB, 1024 * KB),
        (2, 5 * MB, 6 * MB),
        (8, 3 * KB, 3 * KB),
        (1, 700, KB),
    ],
)
def test_sizes_are_rounded_up_to_parts_of_a_power_of_two(divisions: int, size: int, block: int) -> None:
    assert Settings(divisions=(divisions,) * 16).rounded(size) == block


# -- any history, against the rules by address, without lists of blocks


class Piece(NamedTuple):
    """A run of addresses of a segment that no block in use holds."""

    segment: int
    begin: int
    size: int


class Rules:
    """The documented rules: what is in use in each segment, and the pages behind an expandable one."""

    def __init__(self, settings: Settings, capacity: int) -> None:
        self.settings, self.capacity = settings, capacity
        self.lengths: dict[int, int] = {}
        self.small: dict[int, bool] = {}
        self.used: dict[tuple[int, int], int] = {}
        self.pages: dict[bool, set[int]] = {True: set(), False: set()}
        self.numbers = count()

    @property
    def reserved(self) -> int:
        pages = sum(len(pages) * self.page(small) for small, pages in self.pages.items())
        return pages if self.settings.expandable else sum(self.lengths.values())

    def page(self, small: bool) -> int:
        return 2 * MB if small else self.settings.large_segment

    def rounded(self, size: int) -> int:
        power = max(size.bit_length() - 1, 0)
        parts = self.settings.divisions[min(max(power, 20) - 20, 15)]
        if parts > 1 and size > 512 * parts:
            return next(
                at for at in (2**power * (parts + k) // parts for k in range(parts + 1)) if at >= size
            )
        return 512 * max(-(-size // 512), 1)

    def allocate(self, size: int) -> tuple[int, int] | None:
        """Where it is; None if there is no room."""
        size = self.rounded(size)
        small = size <= MB
        place = self.fitting(small, size) or self.more(small, size)
        if place is None:
            self.release()
            place = self.more(small, size)
        if place is None:
            return None
        whole = place.size - size <= MB or size >= self.settings.largest_split
        keeps_rest = whole and not (small or self.settings.expandable)
        self.used[place.segment, place.begin] = place.size if keeps_rest else size
        return place.segment, place.begin

    def free(self, place: tuple[int, int]) -> None:
        del self.used[place]

    def release(self) -> None:
        for segment in [one for one in self.lengths if not any(at == one for at, _ in self.used)]:
            del self.lengths[segment]
        for small, pages in self.pages.items():
            size = self.page(small)
            held = {
                page
                for (segment, begin), length in self.used.items()
                if segment == small
                for page in range(begin // size, -(-(begin + length) // size))
            }
            pages &= held

    def gaps(self, segment: int, end: int) -> list[Piece]:
        """What is not in use, up to an end."""
        spans = sorted((begin, begin + size) for (at, begin), size in self.used.items() if at == segment)
        edges = [0, *(edge for span in spans for edge in span), end]
        pairs = zip(edges[::2], edges[1::2], strict=True)
        return [Piece(segment, begin, until - begin) for begin, until in pairs if begin < until]

    def free_pieces(self, small: bool) -> list[Piece]:
        if not self.settings.expandable:
            mine = [one for one in self.lengths if self.small[one] == small]
            return [piece for segment in mine for piece in self.gaps(segment, self.lengths[segment])]
        return [
            piece for gap in self.expandable_gaps(small) for piece, mapped in self.parts(gap, small) if mapped
        ]

    def expandable_gaps(self, small: bool) -> list[Piece]:
        return self.gaps(int(small), 1 << 50)

    def parts(self, gap: Piece, small: bool) -> list[tuple[Piece, bool]]:
        """A gap cut where memory begins or ends."""
        size, pages = self.page(small), self.pages[small]
        edges = {edge for page in pages for edge in (page * size, page * size + size)}
        cuts = sorted({gap.begin, gap.begin + gap.size, *(e for e in edges if 0 < e - gap.begin < gap.size)})
        found: list[tuple[Piece, bool]] = []
        for begin, end in pairwise(cuts):
            mapped = begin // size in pages
            if found and found[-1][1] == mapped:
                last = found.pop()[0]
                found.append((last._replace(size=end - last.begin), mapped))
            else:
                found.append((Piece(gap.segment, begin, end - begin), mapped))
        return found

    def fitting(self, small: bool, size: int) -> Piece | None:
        """The smallest free piece; of an expandable segment a larger one, if that can grow less."""
        pieces = sorted(self.free_pieces(small), key=lambda one: (one.size, one.segment, one.begin))
        pieces = [one for one in pieces if one.size >= size]
        while self.settings.expandable and len(pieces) > 1 and self.grown(pieces[1]) < self.grown(pieces[0]):
            del pieces[0]
        limit = self.settings.largest_split
        largest = limit if size < limit else size + self.settings.slack
        return pieces[0] if pieces and pieces[0].size < largest else None

    def grown(self, piece: Piece) -> int:
        small = bool(piece.segment)
        (gap,) = (
            one for one in self.expandable_gaps(small) if one.begin <= piece.begin < one.begin + one.size
        )
        parts = [part for part, _ in self.parts(gap, small)]
        return sum(part.size for part in parts[parts.index(piece) :][:2])

    def more(self, small: bool, size: int) -> Piece | None:
        """A new segment, or more pages behind the lowest gap with memory missing; None if it is full."""
        if not self.settings.expandable:
            length = (
                2 * MB if small else self.page(False) if size < 10 * MB else -(-size // (2 * MB)) * 2 * MB
            )
            if self.reserved + length > self.capacity:
                return None
            number = next(self.numbers)
            self.lengths[number], self.small[number] = length, small
            return Piece(number, 0, length)
        begin = self.lowest(small, size)
        page, pages = self.page(small), self.pages[small]
        new = sorted({*range(begin // page, -(-(begin + size) // page))} - pages)
        for _, run in groupby(enumerate(new), lambda one: one[1] - one[0]):
            joined = {number for _, number in run}  # side by side, mapped at once
            if self.reserved + len(joined) * page > self.capacity:
                return None
            pages |= joined
        return Piece(int(small), begin, size)

    def lowest(self, small: bool, size: int) -> int:
        for gap in self.expandable_gaps(small):
            parts = self.parts(gap, small)
            for number, (_, mapped) in enumerate(parts):
                first = number - 1 if number and not mapped else number
                room = gap.begin + gap.size - parts[first][0].begin
                if not mapped and room >= size:
                    return parts[first][0].begin
        raise AssertionError("the last gap has no end")


def drawn_settings(chance: random.Random) -> Settings:
    return Settings(
        expandable=chance.random() < 0.5,
        largest_split=chance.choice([float("inf"), float("inf"), 24 * MB, 50 * MB]),
        slack=chance.choice([20 * MB, 40 * MB]),
        large_segment=chance.choice([20 * MB, 20 * MB, 32 * MB]),
        divisions=chance.choice([(0,) * 16, (4,) * 16, (8, 4, 2, *[1] * 13)]),
    )


# 1,000 histories in all.
@pytest.mark.parametrize(
    "seed", [*range(20), *(pytest.param(n, marks=pytest.mark.full) for n in range(20, 1000))]
)
def test_any_history_keeps_the_rules(seed: int) -> None:
    """The same is reserved and in use as by the rules; blocks never overlap and free ones are merged."""
    chance = random.Random(seed)
    settings, capacity = drawn_settings(chance), chance.choice([1 << 60, 600 * MB])
    allocator, rules = CachingAllocator(capacity, settings), Rules(settings, capacity)
    held: dict[int, tuple[int, tuple[int, int]]] = {}
    for _ in range(300):
        if held and chance.random() < 0.48:
            address = chance.choice(list(held))
            allocator.free(address)
            rules.free(held.pop(address)[1])
        else:
            size = int(2 ** chance.uniform(4, 27))
            place = rules.allocate(size)
            try:
                held[allocator.allocate(size)] = (size, place or (-1, -1))
            except CapacityExceeded:
                assert place is None
        assert allocator.reserved == rules.reserved
        assert allocator.allocated == sum(rules.used.values())
        check(allocator, {address: size for address, (size, _) in held.items()})
    for address in list(held):
        allocator.free(address)
    assert allocator.allocated == 0
    allocator.release()
    assert allocator.reserved == 0


def check(allocator: CachingAllocator, held: dict[int, int]) -> None:
    used = [(address, size, True) for address, (size, _) in allocator._used.items()]
    free = [(begin, size, False) for pool in allocator._free.values() for begin, size in pool.size.items()]
    blocks = sorted([*used, *free])
    assert sum(size for _, size, _ in blocks) == allocator.reserved
    assert sum(size for _, size, _ in used) == allocator.allocated
    assert all(allocator._used[address][0] >= size for address, size in held.items())
    for (left, size, is_used), (right, _, also) in pairwise(blocks):
        assert left + size <= right
        assert left + size < right or is_used or also


class Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name}")


SNAPSHOT = Path(__file__).parents[4] / "benchmarks/gpu/results/nvidia-h200/resnet50.snapshot.pickle.gz"


def test_the_recorded_segments_of_real_snapshots_come_out(traces: Path) -> None:
    """Blocks that no allocation made were there before, and come first."""
    for path in (traces / "memory_snapshots" / "transformer_cuda.pickle", SNAPSHOT):
        changes, reserved = history(path)
        assert replay(changes, Settings()).peak_reserved == pytest.approx(reserved, rel=0.015), path.name


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
