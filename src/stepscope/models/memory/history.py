"""The history of one device's memory, from any kind of file, and what lives at a moment."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np

from stepscope.base.arrays import Codes, Floats, Ids, Rows, Times
from stepscope.facts.annotate.attribution import Attribution, attribute
from stepscope.models.memory.lifetimes import Lifetimes, reserved_over_time, snapshot_lifetimes
from stepscope.models.memory.owners import KINDS, find_owners, snapshot_lines
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
from stepscope.models.memory.stacked_levels import MemoryChanges, StackedLevels
from stepscope.trace.sets import distinct_rows
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
