"""The facts of a memory snapshot: what fills each device at its peak, and what grows."""

from __future__ import annotations

import numpy as np

from stepscope.arrays import Counts, Floats, Times
from stepscope.errors import TraceError
from stepscope.memory.lifetimes import reserved_over_time, snapshot_lifetimes
from stepscope.memory.memory_facts import ACTIVE, Growth, MemoryFacts, OutOfMemory, shares
from stepscope.memory.owners import KINDS, Owners, find_owners, line_of_stack, snapshot_lines
from stepscope.memory.segments import find_fragmentation
from stepscope.trace.trace import Trace

_LEAST_CYCLES = 3  # rises and falls of the memory in use, about one for each step
_LEAST_SHARE_OF_CYCLES = 0.6  # that add an allocation which is never released
_LEAST_BYTES = 1 << 20  # of a call stack that piles up: less is not worth a finding


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
    line, names = snapshot_lines(trace, owners)
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
        growth_lines=tuple(line_of_stack(trace, owners, names, found.stack) for found in growth),
        out_of_memory=_failures(trace, device, used, reserved),
        unassigned_bytes=int(alive.bytes[alive.kind == KINDS.index("unknown")].sum()),
        settings=dict(trace.metadata.properties.get("allocator_settings") or {}),
    )


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


def find_growth(trace: Trace, device: int, used: tuple[Floats, Counts]) -> list[Growth]:
    """Call stacks whose allocations pile up, the largest first.

    Memory use rises and falls once in each step, which divides the history into cycles. What was
    allocated in most cycles and lives on at the end is kept from step to step.

    Args:
        trace: a memory snapshot.
        device: its number.
        used: the device's bytes in use over time, as `Lifetimes.over_time` gives them.
    """
    starts = _cycle_starts(*used)
    if len(starts) < _LEAST_CYCLES:
        return []
    table = trace["allocations"]
    alive = np.flatnonzero(
        (table["device"] == device) & (table["start_ns"] >= 0) & (table["end_ns"] < 0)
        & (table["stack"] >= 0)
    )  # fmt: skip
    cycle = np.searchsorted(starts, table["start_ns"][alive], side="right")
    stacks, group = np.unique(table["stack"][alive], return_inverse=True)
    pairs = np.unique(np.stack([group, cycle]), axis=1)
    cycles = np.bincount(pairs[0], minlength=len(stacks))
    size = np.bincount(group, table["bytes"][alive], len(stacks)).astype(np.int64)
    count = np.bincount(group, minlength=len(stacks))
    enough = max(_LEAST_CYCLES, _LEAST_SHARE_OF_CYCLES * len(starts))
    grows = np.flatnonzero((cycles >= enough) & (size >= _LEAST_BYTES))
    order = grows[np.argsort(-size[grows], kind="stable")]
    return [
        Growth(int(stacks[row]), int(count[row]), int(size[row]), int(size[row] // cycles[row]))
        for row in order
    ]


def _cycle_starts(time: Floats, used: Counts) -> Floats:
    """When the memory use passes upwards through the middle of its recent low and high.

    A leak lifts the whole curve, so the middle is that of the line through its lows and highs.
    """
    level = used.astype(np.float64)
    if len(level) < 2 * _LEAST_CYCLES:
        return np.zeros(0)
    position = np.arange(len(level), dtype=np.float64)
    slope, offset = np.polyfit(position, level, 1)
    flat = level - (slope * position + offset)
    high, low = flat.max(), flat.min()
    above = flat > low + (high - low) * 0.6
    below = flat < low + (high - low) * 0.4
    state = np.where(above, 1, np.where(below, -1, 0))
    known = np.flatnonzero(state)
    rises = known[1:][(state[known][1:] == 1) & (state[known][:-1] == -1)]
    times: Floats = time[rises]
    return times
