"""The history of one device's memory, from any kind of file, and what lives at a moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np

from stepscope.base.arrays import Codes, Counts, Floats, Ids, Ids32, Rows, Times
from stepscope.facts.annotate.attribution import Attribution, attribute
from stepscope.models.memory.lifetimes import Lifetimes, bytes_before, reserved_over_time, snapshot_lifetimes
from stepscope.models.memory.owners import KINDS, UNKNOWN, find_owners, snapshot_lines
from stepscope.models.memory.recorded_memory import (
    RecordedLines,
    RecordedMemory,
    device_number,
    has_addresses,
    module_paths,
    recorded_devices,
    recorded_memory,
    refuse_several_ranks,
)
from stepscope.trace.sets import distinct_rows
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace


@dataclass(frozen=True, eq=False)
class Grouping:
    """One way to divide a device's memory."""

    code: Codes | Ids  # position in `names` of each owner (see `Changes`), -1 for none, shape (owners,)
    names: list[str]


@dataclass(frozen=True, eq=False)
class MemoryHistory:
    """One device."""

    trace: Trace
    device: str  # `cpu`, `cuda:0`; `device 0` of a snapshot
    number: int  # of the device, -1 for the CPU
    changes: MemoryChanges
    life: Lifetimes | None  # of the owners; None if it is unknown which release ends which allocation
    address: Ids | None  # of each owner, -1 if unknown; None without lifetimes
    groupings: Mapping[str, Grouping]  # by `kind`, and as far as they are known by `module` and `line`
    recorded: RecordedMemory | None = None  # of a capture with addresses
    lines: RecordedLines | None = None  # of a capture with addresses

    def stacked(self, by: str) -> StackedLevels:
        """Its levels by one of the groupings."""
        grouping = self.groupings[by]
        return StackedLevels(self.changes, grouping.code, grouping.names, in_order=by == "kind")

    def stack(self, owner: int) -> list[str]:
        """`file:line` of the frames that led to an allocation, innermost first; empty if unknown."""
        if self.life is None:
            return []
        number = int(self.life.recorded[owner])
        if self.recorded and self.lines:
            return self.lines.stack(self.recorded.recording, number)
        parents, frame = self.trace["stacks"]["parent"], int(self.trace["allocations"]["stack"][number])
        names, frames = self.groupings["line"].names, list[str]()
        while frame >= 0:
            frames.append(names[frame])
            frame = int(parents[frame])
        return frames

    @cached_property
    def peak_ns(self) -> int:
        """When most was in use; 0 if that was before the first change."""
        return int(self.changes.time_ns[self.changes.peak - 1]) if self.changes.peak else 0

    @cached_property
    def end_ns(self) -> int:
        """When the last change or entry of the history is over."""
        entries = self.trace["memory_events"]
        mine = entries["time_ns"][entries["device"] == self.number]
        return int(max(self.changes.time_ns.max(initial=0), mine.max(initial=0))) + 1

    @cached_property
    def has_segments(self) -> bool:
        """Whether the file holds the device's segments, as every snapshot does."""
        is_snapshot = not len(self.trace["memory"])
        return is_snapshot or bool((self.trace["segments"]["device"] == self.number).any())

    @cached_property
    def reserved(self) -> tuple[Times, Floats]:
        """Times and the bytes that the allocator has reserved since; empty if unknown."""
        if self.has_segments:
            time, value = reserved_over_time(self.trace, self.number)
            return time, value.astype(np.float64)
        table = self.trace["memory"]
        rows = np.flatnonzero(table.text("device").mask(self.device) & (table["reserved_bytes"] > 0))
        return table["time_ns"][rows], table["reserved_bytes"][rows].astype(float)


def memory_histories(trace: Trace) -> list[MemoryHistory]:
    """The history of each device whose allocations a trace holds, GPUs with most bytes first; raises
    TraceError if the trace holds the allocations of several ranks."""
    if len(trace["memory"]):
        refuse_several_ranks(trace)
        devices = sorted(recorded_devices(trace), key=lambda name: name == "cpu")
        traced = {device for device in devices if has_addresses(trace, device)}
        attribution = attribute(trace) if traced else None
        return [
            _recorded(trace, device, attribution) if device in traced else _usage(trace, device)
            for device in devices
        ]
    return _of_snapshot(trace)


def _of_snapshot(trace: Trace) -> list[MemoryHistory]:
    devices = {*trace["segments"]["device"].tolist(), *trace["memory_events"]["device"].tolist()}
    kind, frame = find_owners(trace)
    line, names = snapshot_lines(trace, frame)
    found = []
    for device in sorted(devices):
        life = snapshot_lifetimes(trace, device, kind)
        groupings = {"kind": Grouping(life.kind, list(KINDS)), "line": Grouping(line[life.recorded], names)}
        changes = MemoryChanges.of_lifetimes(life)
        address = trace["allocations"]["address"][life.recorded]
        found.append(MemoryHistory(trace, f"device {device}", device, changes, life, address, groupings))
    return found


def _recorded(trace: Trace, device: str, attribution: Attribution | None) -> MemoryHistory:
    memory = recorded_memory(trace, device, attribution)
    lines, life = RecordedLines.of(memory), memory.lifetimes
    groupings = {
        "kind": Grouping(life.kind, list(KINDS)),
        "module": Grouping(memory.recording.module, module_paths(trace)),
        "line": Grouping(lines.code, lines.names),
    }
    used = {by: group for by, group in groupings.items() if by == "kind" or (group.code >= 0).any()}
    changes = MemoryChanges.of_lifetimes(life)
    address = memory.recording.address
    return MemoryHistory(trace, device, device_number(device), changes, life, address, used, memory, lines)


def _usage(trace: Trace, device: str) -> MemoryHistory:
    changes = MemoryChanges.of_kinds(trace, device)
    groupings = {"kind": Grouping(np.arange(len(KINDS)), list(KINDS))}
    return MemoryHistory(trace, device, device_number(device), changes, None, None, groupings)


class Living(msgspec.Struct, frozen=True):
    """Allocations of one kind, module and line."""

    kind: int  # positions in the names of the history's groupings, -1 where unknown
    module: int  # positions in the names of the history's groupings, -1 where unknown
    line: int  # positions in the names of the history's groupings, -1 where unknown
    bytes: int
    count: int  # how many; 0 if that is unknown
    largest: int
    owner: int  # row of the largest, -1 if unknown


def living_at(history: MemoryHistory, count: int) -> list[Living]:
    """What lives after so many changes, the largest first."""
    rows = history.changes.holding(count)
    if history.life is None:
        held = history.changes.held(count)
        living = [Living(int(row), -1, -1, int(held[row]), 0, 0, -1) for row in rows]
    else:
        living = _grouped(history, rows, history.life.bytes[rows])
    return sorted(living, key=lambda group: -group.bytes)


def _grouped(history: MemoryHistory, rows: Rows, size: Ids) -> list[Living]:
    groupings = (history.groupings.get(by) for by in ("kind", "module", "line"))
    none = np.full(len(rows), -1, np.int64)
    keys, group = distinct_rows(*(none if each is None else each.code[rows] for each in groupings))
    largest = np.zeros(len(keys), np.int64)
    ascending = np.argsort(size, kind="stable")
    largest[group[ascending]] = ascending  # of equal places the last, the largest, stays
    total, count = np.bincount(group, size, len(keys)), np.bincount(group, minlength=len(keys))
    columns = (total, count, size[largest], rows[largest])
    sizes = zip(keys, *(column.astype(np.int64).tolist() for column in columns), strict=True)
    return [Living(kind, module, line, *rest) for (kind, module, line), *rest in sizes]


# -- memory over time: every change of a device's memory, and stacked areas at any level of detail
# A tile shows every change, or a column for each of `BINS` equal parts of its time. A column shows
# all groups at one moment, that of the part's maximum, so that areas stack and no peak is lost.

BINS = 512  # columns of a tile
_EXACT_CHANGES = 2 * BINS  # changes of a tile that are shown one by one
_CHECKPOINT = 1 << 16  # changes between two stored states
_MOST_GROUPS = 12  # shown; the rest is one group
OTHERS = "everything else"


@dataclass(frozen=True, eq=False)
class MemoryChanges:
    """The changes of one device."""

    # bytes of each owner before the first change, shape (owners,). An owner is an allocation; a kind,
    # where it is unknown which release ends which allocation.
    before: Counts
    time_ns: Times  # when, ascending, shape (n,)
    change: Counts  # bytes, negative for a release, shape (n,)
    owner: Ids32  # whose, shape (n,)

    @classmethod
    def of_lifetimes(cls, life: Lifetimes) -> MemoryChanges:
        """Allocations and releases; at one moment releases come first, as in the allocator."""
        time, owner, begins = life.moments()
        change = np.where(begins, life.bytes[owner], -life.bytes[owner])
        before = np.where(np.isneginf(life.start), life.bytes, 0)
        return cls(before, time.astype(np.int64), change, owner.astype(np.int32))

    @classmethod
    def of_kinds(cls, trace: Trace, device: str) -> MemoryChanges:
        """The changes of a device that were recorded without addresses; owners are `KINDS`.

        Where the file does not state what was there before: the least with which no kind falls below zero.
        """
        table = trace["memory"]
        table = table.take(np.flatnonzero(table.text("device").mask(device)))
        kind, change = _kinds(table), table["bytes"].astype(np.int64)
        return cls(_held_before(table, kind, change), table["time_ns"], change, kind.astype(np.int32))

    @cached_property
    def levels(self) -> Counts:
        """The bytes in use before the first change, and after each, shape (n + 1,)."""
        return int(self.before.sum()) + np.append(0, np.cumsum(self.change))

    @cached_property
    def peak(self) -> int:
        """The number of changes after which most is in use; the first of several."""
        return int(np.argmax(self.levels))

    def count_until(self, time_ns: int) -> int:
        """The number of changes up to a moment, those at that moment included."""
        return int(np.searchsorted(self.time_ns, time_ns, side="right"))

    def holding(self, count: int) -> Rows:
        """The owners that hold memory after so many changes, ascending."""
        return np.flatnonzero(self.held(count))

    def held(self, count: int) -> Counts:
        """The bytes of each owner after so many changes, shape (owners,)."""
        added = np.bincount(self.owner[:count], self.change[:count], len(self.before))
        return self.before + added.astype(np.int64)


def _kinds(table: Table) -> Codes:
    category = table.text("category")
    codes = [KINDS.index(name) if name in KINDS else UNKNOWN for name in category.values]
    return np.array([*codes, UNKNOWN], np.int64)[category.codes]


def _held_before(table: Table, kind: Codes, change: Counts) -> Counts:
    lowest = [np.cumsum(change[kind == code]).min(initial=0) for code in range(len(KINDS))]
    before = -np.minimum(np.array(lowest, np.int64), 0)
    before[UNKNOWN] += max(bytes_before(table) - int(before.sum()), 0)
    return before


@dataclass(frozen=True)
class Columns:
    """What a tile shows: columns that each last until the next begins."""

    exact: bool  # whether each column is one moment and no change is left out
    start_ns: Times  # ascending, shape (n,)
    least: Counts  # the least bytes in use within each column, shape (n,)
    held: Counts  # bytes of each group when most is in use, shape (groups, n)


class StackedLevels:
    """The bytes of groups of owners over time.

    Args:
        code: position in `names` of each owner, -1 for none, shape (owners,).
        in_order: show all groups that have an owner, in the order of `names`. By default those
            that hold most at the peak are shown, the largest first, and the rest is one group.

    Attributes:
        names: of the groups that are shown; empty for owners without one.
        codes: the position of each of them in the names given, -1 for none, -2 for the rest.
    """

    def __init__(
        self, changes: MemoryChanges, code: Codes | Ids, names: Sequence[str], in_order: bool = False
    ) -> None:
        self._changes = changes
        self.codes = _used(changes, code) if in_order else _largest(changes, code, len(names))
        shown = np.full(len(names) + 1, len(self.codes) - 1, np.int8)
        for place, group in enumerate(self.codes):
            if group >= -1:
                shown[group] = place
        self.names = [OTHERS if group == -2 else names[group] if group >= 0 else "" for group in self.codes]
        of_owner = shown[code]
        self._group = of_owner[changes.owner]
        self._before = _sums(of_owner, changes.before, len(self.names))
        number, groups = np.arange(len(self._group)) // _CHECKPOINT, len(self.names)
        steps = len(self._group) // _CHECKPOINT + 1
        added = _sums(number * groups + self._group, changes.change, steps * groups).reshape(steps, groups)
        self._checkpoints = self._before + np.cumsum(added, axis=0) - added

    def tile(self, start_ns: int, end_ns: int) -> Columns:
        """What happens in [start_ns, end_ns)."""
        time = self._changes.time_ns
        first, last = np.searchsorted(time, [start_ns, end_ns])
        if last - first <= _EXACT_CHANGES:
            return self._each_change(start_ns, int(first), int(last))
        edges = np.linspace(start_ns, end_ns, BINS + 1).astype(np.int64)
        states = np.searchsorted(time, edges)
        states[0], states[-1] = first, last
        levels = self._changes.levels
        # The value at a column's start holds in it, so columns share the state at their edge.
        bounds = np.stack([states[:-1], states[1:] + 1], axis=1).ravel()
        padded = np.append(levels[: int(last) + 1], 0)
        most = np.maximum.reduceat(padded, bounds)[::2]
        least = np.minimum.reduceat(padded, bounds)[::2]
        return Columns(False, edges[:-1], least, self.held_after(_first_with(levels, states, most)).T)

    def held_after(self, counts: Rows) -> Counts:
        """The bytes of each group after so many changes, ascending; shape (counts, groups)."""
        if not len(counts):
            return np.zeros((0, len(self.names)), np.int64)
        first = int(counts[0])
        upto = slice(first, int(counts[-1]))
        # A change counts for the first moment that comes after it, and for all later ones.
        column = np.repeat(np.arange(len(counts)), np.diff(counts, prepend=first))
        key = column * len(self.names) + self._group[upto]
        added = _sums(key, self._changes.change[upto], len(counts) * len(self.names))
        added = added.reshape(len(counts), len(self.names))
        near = first // _CHECKPOINT
        rest = slice(near * _CHECKPOINT, first)
        added[0] += self._checkpoints[near]
        added[0] += _sums(self._group[rest], self._changes.change[rest], len(self.names))
        return np.cumsum(added, axis=0)

    def _each_change(self, start_ns: int, first: int, last: int) -> Columns:
        """Each moment with changes; what holds before is a column from the tile's start on."""
        time = self._changes.time_ns[first:last]
        ends = np.flatnonzero(np.append(np.diff(time) != 0, True)[: len(time)])
        counts = np.append(first, first + ends + 1)
        held = self.held_after(counts)
        return Columns(True, np.append(start_ns, time[ends]), self._changes.levels[counts], held.T)


def _used(changes: MemoryChanges, code: Codes | Ids) -> list[int]:
    """The groups with an owner that holds something at some moment, ascending."""
    return np.union1d(code[changes.owner], code[changes.before > 0]).tolist()


def _largest(changes: MemoryChanges, code: Codes | Ids, names: int) -> list[int]:
    """The groups that hold most at the peak; -1 is that of no name, -2 the rest."""
    held = np.bincount(code[changes.owner[: changes.peak]] + 1, changes.change[: changes.peak], names + 1)
    held += np.bincount(code + 1, changes.before, names + 1)
    used = np.array(_used(changes, code), np.int64)
    order = used[np.argsort(-held[used + 1], kind="stable")]
    return [*order[:_MOST_GROUPS].tolist(), *([-2] if len(order) > _MOST_GROUPS else [])]


def _first_with(levels: Counts, states: Rows, most: Counts) -> Rows:
    """For each column the first number of changes after which it holds its maximum."""
    first, last = int(states[0]), int(states[-1])
    hits = np.flatnonzero(levels[first + 1 : last + 1] == np.repeat(most, np.diff(states))) + first + 1
    place = np.minimum(np.searchsorted(hits, states[:-1], side="right"), max(len(hits) - 1, 0))
    inside = hits[place] if len(hits) else states[:-1]
    return np.where(levels[states[:-1]] == most, states[:-1], inside)


def _sums(key: Codes | Ids | np.ndarray, value: Counts, groups: int) -> Counts:
    """Whole bytes of each group; a float counts exactly up to 9 PB."""
    return np.bincount(key, value, groups).astype(np.int64)
