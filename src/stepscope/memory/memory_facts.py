"""The facts of a memory snapshot, one device at a time: what fills it at its peak, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from stepscope.arrays import Counts, Floats, Ids, Times
from stepscope.errors import TraceError
from stepscope.memory.fragmentation import Fragmentation, find_fragmentation
from stepscope.memory.growth import Growth, find_growth
from stepscope.memory.owners import KINDS, Owners, find_owners
from stepscope.memory.shares import MemoryShare, shares
from stepscope.memory.usage import reserved_over_time, snapshot_lifetimes
from stepscope.trace.trace import Trace

# What forward makes and what is computed from it: what checkpointing and smaller batches reduce.
ACTIVE = [KINDS.index("activations"), KINDS.index("temporaries")]


@dataclass(frozen=True)
class OutOfMemory:
    """An allocation that failed: what was asked for, and what the device had left, in bytes.

    None where it is not known; `place` and `module` are empty then.
    """

    time_ns: int
    requested: int | None
    device_free: int | None
    allocated: int
    reserved: int | None
    place: str = ""
    module: str = ""


@dataclass(frozen=True)
class MemoryFacts:
    """What is known of the memory of one device.

    Attributes:
        source: the file.
        device: number of the device, -1 for the CPU.
        entries: of the device's history; without any, the peak is the state at the snapshot.
        peak_bytes, peak_ns: the most that was allocated, and when.
        reserved_peak_bytes: the most that the allocator had reserved; None if it was not recorded.
        kinds, lines: what held it at the peak, the largest first.
        fragmentation: how the reserved memory is used at the snapshot; None without one.
        growth: what piles up.
        out_of_memory: the allocations that failed.
        settings: of the allocator.
        device_name: `cpu`, `cuda:0`; empty in a snapshot.
        stages, modules: what held the peak, as far as the file names them.
        activation_modules, activation_lines: what activations and temporaries hold of the peak.
        unassigned_bytes: what of the peak has no known kind.
        update_line: the line that calls the optimizer; empty where unknown.
        has_lifetimes: whether it is known which release ends which allocation.
    """

    source: str
    device: int
    entries: int
    peak_bytes: int
    peak_ns: int
    reserved_peak_bytes: int | None
    kinds: tuple[MemoryShare, ...]
    lines: tuple[MemoryShare, ...]
    fragmentation: Fragmentation | None
    growth: tuple[Growth, ...]
    growth_lines: tuple[str, ...]
    out_of_memory: tuple[OutOfMemory, ...]
    settings: Mapping[str, Any]
    device_name: str = ""
    stages: tuple[MemoryShare, ...] = ()
    modules: tuple[MemoryShare, ...] = ()
    activation_modules: tuple[MemoryShare, ...] = ()
    activation_lines: tuple[MemoryShare, ...] = ()
    unassigned_bytes: int = 0
    update_line: str = ""
    has_lifetimes: bool = True

    def to_json(self) -> dict[str, Any]:
        """A dict that `json` can write."""
        return asdict(self)


def snapshot_facts(trace: Trace, most: int) -> list[MemoryFacts]:
    """The facts of every device in a memory snapshot.

    Args:
        trace: as `stepscope.open` reads a snapshot.
        most: rows of each part of the peak.

    Raises:
        TraceError: if the trace is no memory snapshot.
    """
    if not len(trace["segments"]) and not len(trace["memory_events"]):
        raise TraceError(
            f"{trace.metadata.source} holds no allocation; record it with: stepscope run --memory "
            "SCRIPT, or write a snapshot with torch.cuda.memory._record_memory_history() and "
            "_dump_snapshot(FILE)"
        )
    devices = {*trace["segments"]["device"].tolist(), *trace["memory_events"]["device"].tolist()}
    owners = find_owners(trace)
    return [_device_facts(trace, device, owners, most) for device in sorted(devices)]


def _device_facts(trace: Trace, device: int, owners: Owners, most: int) -> MemoryFacts:
    life = snapshot_lifetimes(trace, device, owners.kind)
    used, reserved = life.over_time(), reserved_over_time(trace, device)
    peak, moment = life.peak()
    alive = life.take(np.flatnonzero(life.alive(moment)))
    active = alive.take(np.flatnonzero(np.isin(alive.kind, ACTIVE)))
    growth = tuple(find_growth(trace, device, used))
    line, names = lines_of_owners(owners, line_names(trace))
    return MemoryFacts(
        source=trace.metadata.source,
        device=device,
        entries=int((trace["memory_events"]["device"] == device).sum()),
        peak_bytes=peak,
        peak_ns=int(max(moment, 0)),
        reserved_peak_bytes=int(reserved[1].max()),
        kinds=shares(alive.bytes, alive.kind, KINDS),
        lines=shares(alive.bytes, line[alive.recorded], names)[:most],
        activation_lines=shares(active.bytes, line[active.recorded], names)[:most],
        fragmentation=find_fragmentation(trace, device),
        growth=growth,
        growth_lines=tuple(line_of_stack(trace, owners, one.stack) for one in growth),
        out_of_memory=_failures(trace, device, used, reserved),
        unassigned_bytes=int(alive.bytes[alive.kind == KINDS.index("unknown")].sum()),
        settings=dict(trace.metadata.properties.get("allocator_settings") or {}),
    )


def lines_of_owners(owners: Owners, names: list[str]) -> tuple[Ids, list[str]]:
    """Position of each allocation's line, the same for frames of one line, and their names."""
    first = np.append(_first_of_name(names), -1)
    return first[owners.line].astype(np.int64), names


def _first_of_name(names: list[str]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """For each frame the first frame of the same line: one line may be on many paths."""
    first: dict[str, int] = {}
    return np.array([first.setdefault(name, row) for row, name in enumerate(names)], np.int64)


def line_names(trace: Trace) -> list[str]:
    """`file:line function` of each row of the table `stacks`."""
    stacks = trace["stacks"]
    rows = zip(stacks.text("file"), stacks["line"].tolist(), stacks.text("function"), strict=True)
    return [f"{file}:{line} {function}" for file, line, function in rows]


def line_of_stack(trace: Trace, owners: Owners, stack: int) -> str:
    """The user's line of a call stack, its innermost frame where it has none."""
    row = np.flatnonzero(trace["allocations"]["stack"] == stack)
    line = int(owners.line[row[0]]) if len(row) else -1
    stacks = trace["stacks"]
    number = line if line >= 0 else stack
    file, function = stacks.text("file")[number], stacks.text("function")[number]
    return f"{file}:{int(stacks['line'][number])} {function}"


def _failures(
    trace: Trace, device: int, used: tuple[Floats, Counts], reserved: tuple[Times, Counts]
) -> tuple[OutOfMemory, ...]:
    events = trace["memory_events"]
    rows = np.flatnonzero((events["device"] == device) & events.text("action").mask("oom"))
    return tuple(
        OutOfMemory(
            time_ns=int(events["time_ns"][row]),
            requested=int(events["bytes"][row]),
            device_free=free if (free := int(events["device_free_bytes"][row])) >= 0 else None,
            allocated=_at(*used, int(events["time_ns"][row])),
            reserved=_at(*reserved, int(events["time_ns"][row])),
        )
        for row in rows
    )


def _at(times: Times | Floats, values: Counts, time_ns: int) -> int:
    """The value in force at a moment."""
    return int(values[max(0, int(np.searchsorted(times, time_ns, side="right")) - 1)])
