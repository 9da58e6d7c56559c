"""The segments of a device: their holes at any moment, and what fragments them at the snapshot."""

import msgspec
import numpy as np

from stepscope.base.arrays import Counts, Ids
from stepscope.models.memory.caching_allocator import BLOCK, Settings
from stepscope.models.memory.history import MemoryHistory
from stepscope.models.memory.lifetimes import RETURNS, TAKES
from stepscope.trace.intervals import index_pairs
from stepscope.trace.row_order import running_span
from stepscope.trace.trace import Trace

PARTS = 128  # of a segment: the columns that the page draws


class Fragmentation(msgspec.Struct, frozen=True):
    """The state of one device's segments at the snapshot, in bytes."""

    reserved: int  # all segments
    in_use: int  # blocks in use
    cached: int  # segments without a block in use, and free pages of expandable ones: returned at any time
    pinned: int  # free blocks in segments that also hold blocks in use
    private: int  # free blocks in private pools: kept as long as the CUDA graphs live that use them
    largest_free: int  # the largest free block in no such pool: the most that fits without a new segment


def find_fragmentation(trace: Trace, device: int) -> Fragmentation:
    """How a device's reserved memory is used at the snapshot."""
    segments, blocks = trace["segments"], trace["blocks"]
    mine = segments["device"] == device
    of, size = blocks["segment"], blocks["bytes"]
    used = blocks.text("state").where(lambda state: state.startswith("active"))
    used_bytes = np.bincount(of, np.where(used, size, 0), len(segments)).astype(np.int64)
    free_bytes = np.bincount(of, np.where(used, 0, size), len(segments)).astype(np.int64)
    pages = np.bincount(of, np.where(used, 0, _free_pages(trace)), len(segments)).astype(np.int64)
    private = mine & (segments["private"] == 1)
    shared = mine & ~private
    cached = np.where(used_bytes > 0, pages, segments["bytes"])
    return Fragmentation(
        reserved=int(segments["bytes"][mine].sum()),
        in_use=int(used_bytes[mine].sum()),
        cached=int(cached[shared].sum()),
        pinned=int((free_bytes - pages)[shared & (used_bytes > 0)].sum()),
        private=int(free_bytes[private].sum()),
        largest_free=int(size[shared[of] & ~used].max(initial=0)),
    )


def _free_pages(trace: Trace) -> Counts:
    """The bytes of each block in whole pages of an expandable segment, which are returned one by one."""
    segments, blocks, settings = trace["segments"], trace["blocks"], Settings.of_trace(trace)
    of = blocks["segment"]
    page = np.where(segments.text("pool").mask("small"), settings.page(True), settings.page(False))[of]
    begin = blocks["address"] - segments["address"][of]
    whole = (begin + blocks["bytes"]) // page - -(-begin // page)
    return np.where(segments["expandable"][of] == 1, np.maximum(whole, 0) * page, 0)


class SegmentState(msgspec.Struct, frozen=True):
    """One segment."""

    address: int
    bytes: int
    used_bytes: int
    largest_hole: int
    # for each of `PARTS` equal parts what holds most of it: a position in `KINDS`, -1 if most is free
    parts: list[int]


def segments_at(history: MemoryHistory, time_ns: int) -> list[SegmentState]:
    """The segments at a moment, those with most free memory first; none without a snapshot."""
    address, size = _segments(history, time_ns)
    start, length, kind = _blocks(history, history.changes.count_until(time_ns))
    segment = running_span(address, address + size, start)
    inside = segment >= 0
    start, length, kind, segment = (column[inside] for column in (start, length, kind, segment))
    length = np.minimum(length, (address + size)[segment] - start)
    used = np.bincount(segment, length, len(address)).astype(np.int64)
    hole = _largest_holes(address, size, start, length, segment)
    parts = _parts(address, size, start, length, kind, segment)
    order = np.argsort(used - size, kind="stable").tolist()
    return [
        SegmentState(int(address[row]), int(size[row]), int(used[row]), int(hole[row]), parts[row].tolist())
        for row in order
    ]


def _segments(history: MemoryHistory, time_ns: int) -> tuple[Ids, Counts]:
    """Addresses, ascending, and sizes: those of the snapshot with what came after undone."""
    table, events = history.trace["segments"], history.trace["memory_events"]
    mine = table["device"] == history.number
    later = (events["device"] == history.number) & (events["time_ns"] > time_ns)
    action = events.text("action")
    taken, given = (later & action.mask(*names) for names in (TAKES, RETURNS))
    start = [table["address"][mine], events["address"][given], events["address"][taken]]
    size = [table["bytes"][mine], events["bytes"][given], events["bytes"][taken]]
    sign = np.repeat([1, 1, -1], [len(part) for part in start])
    begin, length = np.concatenate(start), np.concatenate(size)
    # Segments lie side by side and stay apart; what was mapped piece by piece is one again.
    apart = np.concatenate([start[0], events["address"][given & action.mask("segment_free")]])
    return _covered(begin, begin + length, sign, apart)


def _covered(begin: Ids, end: Ids, sign: Ids, apart: Ids) -> tuple[Ids, Counts]:
    """Where more intervals begin than end, as starts and sizes."""
    edges, place = np.unique(np.concatenate([begin, end]), return_inverse=True)
    step = np.bincount(place, np.concatenate([sign, -sign]), len(edges))
    covered = np.cumsum(step)[:-1] > 0
    first = np.flatnonzero(covered & (~np.append(False, covered[:-1]) | np.isin(edges[:-1], apart)))
    return edges[first], np.add.reduceat(np.where(covered, np.diff(edges), 0), first).astype(np.int64)


def _blocks(history: MemoryHistory, count: int) -> tuple[Ids, Counts, Ids]:
    """Start, size and kind of the allocations in use, by address."""
    none = np.zeros(0, np.int64)
    if history.life is None or history.address is None:
        return none, none, none
    rows = history.changes.holding(count)
    rows = rows[np.argsort(history.address[rows], kind="stable")]
    return history.address[rows], -(-history.life.bytes[rows] // BLOCK) * BLOCK, history.life.kind[rows]


def _largest_holes(address: Ids, size: Counts, start: Ids, length: Counts, segment: Ids) -> Counts:
    number = np.arange(len(address))
    owner = np.concatenate([segment, number, number])
    begin = np.concatenate([start, address, address + size])
    after = np.concatenate([start + length, address, address + size])
    order = np.lexsort((after, begin, owner))
    owner, begin, after = owner[order], begin[order], after[order]
    gap = np.append(begin[1:] - after[:-1], 0)
    gap[np.append(owner[1:] != owner[:-1], True)] = 0
    hole = np.zeros(len(address), np.int64)
    np.maximum.at(hole, owner, gap)
    return hole


def _parts(address: Ids, size: Counts, start: Ids, length: Counts, kind: Ids, segment: Ids) -> Ids:
    """What holds most of each part of each segment, shape (segments, PARTS)."""
    part = size / PARTS
    first = np.floor((start - address[segment]) / part[segment]).astype(np.int64)
    last = np.ceil((start + length - address[segment]) / part[segment]).astype(np.int64)
    block, number = index_pairs(first, first + np.maximum(last - first, 1))
    number = np.minimum(number, PARTS - 1)
    from_ = address[segment[block]] + number * part[segment[block]]
    covered = np.minimum(start[block] + length[block], from_ + part[segment[block]])
    covered = np.maximum(covered - np.maximum(start[block], from_), 0)
    kinds = int(kind.max(initial=0)) + 1
    key = (segment[block] * PARTS + number) * kinds + kind[block]
    held = np.bincount(key, covered, len(address) * PARTS * kinds).reshape(len(address), PARTS, kinds)
    free = part[:, None] - held.sum(axis=2)
    return np.where(free > held.max(axis=2, initial=0), -1, held.argmax(axis=2))
