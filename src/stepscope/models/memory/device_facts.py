"""The facts of each device whose memory a file holds: what fills it at its peak, and what grows."""

from typing import Any

import numpy as np
from msgspec import structs

from stepscope.base.arrays import Counts, Ids, Rows
from stepscope.errors import TraceError
from stepscope.models.memory.growth import find_growth, recorded_growth
from stepscope.models.memory.history import MemoryHistory, memory_histories
from stepscope.models.memory.lifetimes import Lifetimes
from stepscope.models.memory.memory_facts import ACTIVE, Growth, MemoryFacts, MemoryShare, OutOfMemory, shares
from stepscope.models.memory.owners import KINDS
from stepscope.models.memory.recorded_memory import AllocationRecord, recorded_devices
from stepscope.models.memory.segments import find_fragmentation
from stepscope.trace.schema import STAGES
from stepscope.trace.trace import Trace

_BEFORE = "before the recorded steps"


def memory_facts(trace: Trace, most: int = 12) -> list[MemoryFacts]:
    """The facts of every device in a memory snapshot, or in a capture made with `--memory`; raises
    TraceError if the trace holds no allocation, or those of several ranks."""
    if not any(len(trace[name]) for name in ("memory", "segments", "memory_events")):
        raise TraceError(
            f"{trace.metadata.source} holds no allocation; record it with: stepscope run --memory "
            "SCRIPT, or write a snapshot with torch.cuda.memory._record_memory_history() and "
            "_dump_snapshot(FILE)"
        )
    histories = memory_histories(trace)
    if order := recorded_devices(trace):
        histories.sort(key=lambda history: order.index(history.device))
    return [_device_facts(history, most) for history in histories]


def _device_facts(history: MemoryHistory, most: int) -> MemoryFacts:
    trace, life, changes = history.trace, history.life, history.changes
    held = changes.held(changes.peak)
    moment = float(changes.time_ns[changes.peak - 1]) if changes.peak else -np.inf
    rows = np.flatnonzero(held if life is None else life.alive(moment))
    kind = history.groupings["kind"].code[rows]
    active = rows[np.isin(kind, ACTIVE)]
    unassigned = rows[kind == KINDS.index("unknown")]
    before = unassigned[np.isneginf(life.start[unassigned])] if life else unassigned[:0]
    growth = _growth(history)
    return MemoryFacts(
        source=trace.metadata.source,
        device=history.number,
        device_name=history.device if len(trace["memory"]) else "",
        entries=_entries(history),
        peak_bytes=int(changes.levels[changes.peak]),
        peak_ns=int(max(moment, 0)),
        reserved_peak_bytes=int(history.reserved[1].max()) if len(history.reserved[1]) else None,
        kinds=_held_by(history, "kind", rows, held),
        lines=_held_by(history, "line", rows, held)[:most],
        stages=_stages(history.recorded.recording, rows, held) if history.recorded else (),
        modules=_held_by(history, "module", rows, held)[:most],
        activation_modules=_held_by(history, "module", active, held)[:most],
        activation_lines=_held_by(history, "line", active, held)[:most],
        update_line=history.lines.name(history.lines.update) if history.lines else "",
        unassigned_bytes=int(held[unassigned].sum()),
        unassigned_before_bytes=int(held[before].sum()),
        fragmentation=find_fragmentation(trace, history.number) if history.has_segments else None,
        growth=tuple(found for found, _ in growth),
        growth_lines=tuple(line for _, line in growth),
        out_of_memory=_failures(history),
        settings=dict(trace.metadata.properties.get("allocator_settings") or {}),
        has_lifetimes=life is not None,
    )


def _entries(history: MemoryHistory) -> int:
    memory, events = history.trace["memory"], history.trace["memory_events"]
    if len(memory):
        return int(memory.text("device").mask(history.device).sum())
    return int((events["device"] == history.number).sum())


def _held_by(history: MemoryHistory, by: str, rows: Rows | Ids, held: Counts) -> tuple[MemoryShare, ...]:
    """What the groups of a grouping hold; nothing where the file can have no such groups."""
    grouping = history.groupings.get(by)
    if grouping is None:
        unknown = np.full(len(rows), -1, np.int64)
        return shares(held[rows], unknown, ()) if history.recorded else ()
    found = shares(held[rows], grouping.code[rows], grouping.names)
    if history.life is None:
        return tuple(structs.replace(share, count=0) for share in found)
    return found


def _stages(recording: AllocationRecord, rows: Rows | Ids, held: Counts) -> tuple[MemoryShare, ...]:
    before = np.isneginf(recording.lifetimes.start[rows])
    stage = np.where(before, len(STAGES), recording.stage[rows])
    return shares(held[rows], stage, (*STAGES, _BEFORE))


def _growth(history: MemoryHistory) -> list[tuple[Growth, str]]:
    """What piles up, each with its line."""
    if history.recorded and history.lines:
        found = recorded_growth(history.recorded, history.lines)
        return [(growth, history.lines.name(line)) for growth, line in found]
    if history.life is None:
        return []
    grown = find_growth(history.trace, history.number, history.life.over_time())
    return [(growth, _line_of_stack(history, history.life, growth.stack)) for growth in grown]


def _line_of_stack(history: MemoryHistory, life: Lifetimes, stack: int) -> str:
    """The user's line of a call stack, empty where it has none."""
    grouping = history.groupings["line"]
    rows = np.flatnonzero(history.trace["allocations"]["stack"][life.recorded] == stack)
    line = int(grouping.code[rows[0]]) if len(rows) else -1
    return grouping.names[line] if line >= 0 else ""


def _failures(history: MemoryHistory) -> tuple[OutOfMemory, ...]:
    if len(history.trace["memory"]):
        failed = history.trace.metadata.properties.get("out_of_memory") or {}
        return (_recorded_failure(history, failed),) if failed.get("device") == history.device else ()
    events = history.trace["memory_events"]
    mine = (events["device"] == history.number) & events.text("action").mask("oom")
    return tuple(_failure(history, int(row)) for row in np.flatnonzero(mine))


def _recorded_failure(history: MemoryHistory, failed: dict[str, Any]) -> OutOfMemory:
    return OutOfMemory(
        time_ns=-1,
        requested=failed["requested_bytes"],
        device_free=None,
        allocated=int(history.changes.levels[-1]),
        reserved=None,
        place=f"{failed['file']}:{failed['line']}" if failed["file"] else "",
        module=failed["module"],
    )


def _failure(history: MemoryHistory, row: int) -> OutOfMemory:
    events, changes = history.trace["memory_events"], history.changes
    time, free = int(events["time_ns"][row]), int(events["device_free_bytes"][row])
    times, reserved = history.reserved
    return OutOfMemory(
        time_ns=time,
        requested=int(events["bytes"][row]),
        device_free=free if free >= 0 else None,
        allocated=int(changes.levels[changes.count_until(time)]),
        reserved=int(reserved[max(0, int(np.searchsorted(times, time, side="right")) - 1)]),
    )
