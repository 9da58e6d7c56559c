"""Answers about memory over time: stacked areas by tile, what lives at a moment, what to do."""

import msgspec
import numpy as np

from stepscope.errors import ServeError
from stepscope.faces.page.axis_answers import tile_number
from stepscope.faces.page.requests import Query, filled
from stepscope.faces.page.trace_view import TraceView
from stepscope.facts.timeline.axis.counters import CounterValues
from stepscope.models.memory.device_facts import device_facts, holds_memory
from stepscope.models.memory.history import (
    BINS,
    Living,
    MemoryHistory,
    StackedLevels,
    living_at,
    memory_histories,
)
from stepscope.models.memory.memory_findings import MemoryFinding, find_problems
from stepscope.models.memory.memory_text import verdict
from stepscope.models.memory.owners import KINDS
from stepscope.models.memory.segments import segments_at

_MOST_LIVING = 200  # rows; chosen: the page lists the largest, not all
_MOST_SEGMENTS = 60  # rows; chosen: those with most free memory


class MemoryGroups(msgspec.Struct):
    """One way to divide memory: `by` kind, module or line."""

    by: str
    names: list[str]  # of its groups, in the order of the areas; empty for what is in none of them
    modules: list[int]  # ids of the modules that they are, -1 for other groups


class FailedAllocation(msgspec.Struct):
    """An out-of-memory error."""

    time_ns: int
    bytes: int | None  # what was requested, null if unknown


class MemoryDevice(msgspec.Struct):
    """A device whose memory was recorded."""

    id: str  # in requests
    changes: int  # number of allocations and releases
    peak_bytes: int  # the most in use
    peak_ns: int  # when
    reserved_bytes: int | None  # the most that the allocator held, null if unknown
    lifetimes: bool  # whether it is known which release ends which allocation
    groupings: list[MemoryGroups]  # the ways to divide it
    failures: list[FailedAllocation]  # allocations that failed
    verdict: str  # what fills it at its peak, in one sentence
    findings: list[MemoryFinding]  # what to do about it


class Memory(msgspec.Struct):
    """The memory of each device, and the scale of its tiles."""

    end_ns: int  # end of the time axis, ns since the trace's start
    tile_ns: int  # length of the tile at zoom 0; each zoom halves it
    deepest: int  # the largest zoom
    bins: int  # columns of a tile that is not exact
    kinds: list[str]  # what memory is for, as segments name it by position
    devices: list[MemoryDevice]


class MemoryTile(msgspec.Struct):
    """Memory in a tile: columns that each last until the next; lists of one length."""

    zoom: int
    tile: int
    exact: bool  # whether each column is one moment: the tiles inside this one show nothing more
    start_ns: list[int]  # start of each column since the tile's start
    least: list[int]  # the least bytes in use within it
    held: list[list[int]]  # bytes of each group at its maximum, in the order of the grouping
    reserved_ns: list[int]  # since when the allocator had `reserved` bytes, since the tile's start
    reserved: list[int]  # bytes


class LivingRow(msgspec.Struct):
    """Allocations of one kind, module and line that live at a moment."""

    kind: str
    module: str  # path, empty where unknown
    module_id: int | None  # null where unknown
    line: str  # `file:line`, and the function in a snapshot; empty where unknown
    bytes: int
    count: int  # of allocations; 0 if unknown
    largest: int  # bytes of the largest of them
    stack: list[int]  # of the largest, innermost first: positions in `frames`; empty if unknown


class SegmentRow(msgspec.Struct):
    """A segment of the caching allocator at a moment."""

    address: str  # hexadecimal
    bytes: int
    free_bytes: int  # what no allocation holds
    largest_hole: int  # bytes of the largest free piece
    parts: list[int]  # what holds most of each of equal parts: a position in `kinds`, -1 where most is free


class MemoryMoment(msgspec.Struct):
    """What lives at a moment."""

    time_ns: int
    used_bytes: int  # in use
    living: list[LivingRow]  # by size, at most 200
    living_rows: int  # how many there are
    frames: list[str]  # of the stacks: `file:line`, and the function in a snapshot
    segments: list[SegmentRow]  # those with most free memory first, at most 60
    segments_count: int  # how many there are
    reserved_bytes: int  # bytes of all segments
    largest_hole: int  # bytes of the largest free piece of all


def memory(view: TraceView, query: Query) -> Memory:
    """The devices whose memory was recorded."""
    histories = _histories(view)
    end = max([view.time_axis.end_ns, *(history.end_ns for history in histories)])
    halvings = max((end - 1) // BINS, 0).bit_length()
    return Memory(
        end_ns=end,
        tile_ns=BINS << halvings,
        deepest=halvings,
        bins=BINS,
        kinds=list(KINDS),
        devices=[_device(view, history) for history in histories],
    )


def memory_tile(view: TraceView, query: Query) -> MemoryTile:
    """Memory in a tile of the time axis, as areas that stack.

    Query:
        device: id of the device; by default the first.
        by: `kind` (default), `module` or `line`.
        zoom: 0 for the whole axis; each further one halves the tile.
        tile: number of the tile, from 0.
    """
    history, about = _history(view, query), view.cached(("memory",), lambda: memory(view, query))
    zoom, tile = tile_number(about.deepest, query)
    length = about.tile_ns >> zoom
    start = tile * length
    columns = _stacked(view, history, _by(history, query)).tile(start, start + length)
    times, reserved = _reserved(history, start, start + length)
    since = (columns.start_ns - start).tolist()
    return filled(
        MemoryTile, columns, zoom=zoom, tile=tile, start_ns=since, reserved_ns=times, reserved=reserved
    )


def memory_moment(view: TraceView, query: Query) -> MemoryMoment:
    """What lives at a moment, and the segments of the allocator then.

    Query:
        device: id of the device; by default the first.
        time: ns since the trace's start; by default that of the peak.
        by: with `group`: `kind` (default), `module` or `line`.
        group: position of a group in the grouping; by default all are listed.
    """
    history = _history(view, query)
    time = query.number("time")
    count = history.changes.peak if time is None else history.changes.count_until(time)
    time = history.peak_ns if time is None else time
    living = [
        allocation for allocation in living_at(history, count) if _is_in(view, history, query, allocation)
    ]
    segments, frames = segments_at(history, time), dict[str, int]()
    return MemoryMoment(
        time_ns=time,
        used_bytes=int(history.changes.levels[count]),
        living=[_living_row(history, allocation, frames) for allocation in living[:_MOST_LIVING]],
        living_rows=len(living),
        frames=list(frames),
        segments=[
            filled(SegmentRow, held, address=f"{held.address:#x}", free_bytes=held.bytes - held.used_bytes)
            for held in segments[:_MOST_SEGMENTS]
        ],
        segments_count=len(segments),
        reserved_bytes=sum(segment.bytes for segment in segments),
        largest_hole=max((segment.largest_hole for segment in segments), default=0),
    )


def _histories(view: TraceView) -> list[MemoryHistory]:
    if not holds_memory(view.trace):
        raise ServeError("the trace holds no allocation; record it with stepscope run --memory", 404)
    return view.cached(("memory histories",), lambda: memory_histories(view.trace))


def _history(view: TraceView, query: Query) -> MemoryHistory:
    histories, id = _histories(view), query.text("device")
    chosen = next((history for history in histories if id in ("", history.device)), None)
    if chosen is None:
        names = ", ".join(history.device for history in histories)
        raise ServeError(f"expected one of {names}, found {id[:40]!r}", 404)
    return chosen


def _by(history: MemoryHistory, query: Query) -> str:
    by = query.text("by") or "kind"
    if by not in history.groupings:
        raise ServeError(f"expected one of {', '.join(history.groupings)}, found {by[:40]!r}", 404)
    return by


def _stacked(view: TraceView, history: MemoryHistory, by: str) -> StackedLevels:
    return view.cached(("memory levels", history.device, by), lambda: history.stacked(by))


def _device(view: TraceView, history: MemoryHistory) -> MemoryDevice:
    facts = view.cached(("memory facts", history.device), lambda: device_facts(history))
    reserved, findings = history.reserved[1], find_problems(facts)
    return MemoryDevice(
        id=history.device,
        changes=len(history.changes.time_ns),
        peak_bytes=int(history.changes.levels[history.changes.peak]),
        peak_ns=history.peak_ns,
        reserved_bytes=int(reserved.max()) if len(reserved) else None,
        lifetimes=history.life is not None,
        groupings=[_groups(by, _stacked(view, history, by)) for by in history.groupings],
        failures=[
            FailedAllocation(failed.time_ns if failed.time_ns >= 0 else history.end_ns, failed.requested)
            for failed in facts.out_of_memory
        ],
        verdict=verdict(facts, findings),
        findings=findings,
    )


def _groups(by: str, stacked: StackedLevels) -> MemoryGroups:
    modules = [max(code, -1) if by == "module" else -1 for code in stacked.codes]
    return MemoryGroups(by, stacked.names, modules)


def _reserved(history: MemoryHistory, start: int, end: int) -> tuple[list[int], list[int]]:
    """The reserved bytes in a tile: each change, or the most of each of its parts."""
    if not len(history.reserved[0]):
        return [], []
    runs = CounterValues(*history.reserved).tile(start, end)
    return np.maximum(runs.start_ns - start, 0).tolist(), runs.most.astype(int).tolist()


def _is_in(view: TraceView, history: MemoryHistory, query: Query, living: Living) -> bool:
    group = query.number("group")
    if group is None:
        return True
    by = _by(history, query)
    codes = _stacked(view, history, by).codes
    if group >= len(codes):
        raise ServeError(f"expected a group below {len(codes)}, found {group}", 404)
    code = getattr(living, by)
    return code == codes[group] if codes[group] != -2 else code not in codes


def _living_row(history: MemoryHistory, living: Living, frames: dict[str, int]) -> LivingRow:
    """A row, whose frames get their places in `frames`."""
    names = dict.fromkeys(("kind", "module", "line"), "")
    for by, grouping in history.groupings.items():
        names[by] = grouping.names[code] if (code := getattr(living, by)) >= 0 else ""
    stack = [frames.setdefault(frame, len(frames)) for frame in history.stack(living.owner)]
    module = living.module if living.module >= 0 else None
    return filled(LivingRow, living, **names, module_id=module, stack=stack)
