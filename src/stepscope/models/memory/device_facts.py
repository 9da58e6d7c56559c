"""The facts of each device whose memory a file holds: what fills it at its peak, and what grows."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import structs

from stepscope.base.arrays import Codes, Counts, Ids, Rows
from stepscope.errors import TraceError
from stepscope.models.memory.growth import Growth, find_growth, recorded_growth
from stepscope.models.memory.history import MemoryHistory, memory_histories
from stepscope.models.memory.lifetimes import Lifetimes
from stepscope.models.memory.owners import ACTIVE, UNKNOWN
from stepscope.models.memory.recorded_memory import AllocationRecord, recorded_devices
from stepscope.models.memory.segments import Fragmentation, find_fragmentation
from stepscope.trace.schema import STAGES, TRAINING_STAGES
from stepscope.trace.trace import Trace


class MemoryShare(msgspec.Struct, frozen=True):
    """What a kind or a line holds at the peak."""

    name: str
    bytes: int
    count: int


class OutOfMemory(msgspec.Struct, frozen=True):
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


class MemoryFacts(msgspec.Struct, frozen=True):
    """What is known of the memory of one device."""

    source: str
    device: int  # number of the device, -1 for the CPU
    entries: int  # of the device's history; without any, the peak is the state at the snapshot
    peak_bytes: int  # the most that was allocated
    peak_ns: int  # when that was
    reserved_peak_bytes: int | None  # the most that the allocator had reserved; None if it was not recorded
    kinds: tuple[MemoryShare, ...]  # what held memory at the peak, the largest first
    lines: tuple[MemoryShare, ...] = ()  # what held memory at the peak, the largest first
    # how the reserved memory is used at the snapshot; None without one
    fragmentation: Fragmentation | None = None
    growth: tuple[Growth, ...] = ()  # what piles up
    growth_lines: tuple[str, ...] = ()  # the line of each of them
    out_of_memory: tuple[OutOfMemory, ...] = ()
    settings: Mapping[str, Any] = msgspec.field(default_factory=dict)
    device_name: str = ""  # `cpu`, `cuda:0`; empty in a snapshot
    stages: tuple[MemoryShare, ...] = ()  # what held the peak, as far as the file names them
    modules: tuple[MemoryShare, ...] = ()  # what held the peak, as far as the file names them
    activation_modules: tuple[MemoryShare, ...] = ()  # what activations and temporaries hold of the peak
    activation_lines: tuple[MemoryShare, ...] = ()  # what activations and temporaries hold of the peak
    unassigned_lines: tuple[MemoryShare, ...] = ()  # what of the peak has no known kind
    unassigned_bytes: int = 0  # what of the peak has no known kind
    unassigned_before_bytes: int = 0  # what of that was allocated before the history
    update_line: str = ""  # the line that calls the optimizer; empty where unknown
    has_lifetimes: bool = True  # whether it is known which release ends which allocation
    may_train: bool = True  # whether backward or an optimizer was recorded, or no operators were

    @property
    def moment(self) -> str:
        """What the shares are of: the peak, which a snapshot without a history does not show."""
        return "peak" if self.entries else "snapshot"


def shares(size: Counts, group: Codes | Ids, names: Sequence[str]) -> tuple[MemoryShare, ...]:
    """The groups that hold something, the largest first; what is in none is a row without a name.

    Example:
        >>> shares(np.array([1, 2, 4]), np.array([0, 1, 0]), ("weights", "inputs"))[0]
        MemoryShare(name='weights', bytes=5, count=2)
    """
    keys, place = np.unique(group, return_inverse=True)
    total = np.bincount(place, size, len(keys)).astype(np.int64)
    count = np.bincount(place, minlength=len(keys))
    order = [row for row in np.argsort(-total, kind="stable").tolist() if total[row]]
    return tuple(
        MemoryShare(names[keys[row]] if keys[row] >= 0 else "", int(total[row]), int(count[row]))
        for row in order
    )


def holds_memory(trace: Trace) -> bool:
    """Whether a file holds allocations."""
    return any(len(trace[name]) for name in ("memory", "segments", "memory_events"))


def memory_facts(trace: Trace, most: int = 12) -> list[MemoryFacts]:
    """The facts of every device in a memory snapshot, or in a capture made with `--memory`; raises
    TraceError if the trace holds no allocation, or those of several ranks."""
    if not holds_memory(trace):
        raise TraceError(
            f"{trace.metadata.source} holds no allocation; record it with: stepscope run --memory SCRIPT, or "
            "write a snapshot with torch.cuda.memory._record_memory_history() and _dump_snapshot(FILE)"
        )
    histories = memory_histories(trace)
    if order := recorded_devices(trace):
        histories.sort(key=lambda history: order.index(history.device))
    return [device_facts(history, most) for history in histories]


def device_facts(history: MemoryHistory, most: int = 12) -> MemoryFacts:
    """The facts of one device, with so many lines and modules at most."""
    trace, life, changes = history.trace, history.life, history.changes
    held = changes.held(changes.peak)
    moment = float(changes.time_ns[changes.peak - 1]) if changes.peak else -np.inf
    rows = np.flatnonzero(held if life is None else life.alive(moment))
    kind = history.groupings["kind"].code[rows]
    active = rows[np.isin(kind, ACTIVE)]
    unassigned = rows[kind == UNKNOWN]
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
        unassigned_lines=_held_by(history, "line", unassigned, held)[:most],
        update_line=history.lines.name(history.lines.update) if history.lines else "",
        unassigned_bytes=int(held[unassigned].sum()),
        unassigned_before_bytes=int(held[before].sum()),
        fragmentation=find_fragmentation(trace, history.number) if history.has_segments else None,
        growth=tuple(found for found, _ in growth),
        growth_lines=tuple(line for _, line in growth),
        out_of_memory=_failures(history),
        settings=dict(trace.metadata.properties.get("allocator_settings") or {}),
        has_lifetimes=life is not None,
        may_train=not len(trace.events) or bool(trace.events.text("stage").mask(*TRAINING_STAGES).any()),
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
        return shares(held[rows], np.full(len(rows), -1, np.int64), ()) if history.recorded else ()
    found = shares(held[rows], grouping.code[rows], grouping.names)
    return found if history.life is not None else tuple(structs.replace(share, count=0) for share in found)


def _stages(recording: AllocationRecord, rows: Rows | Ids, held: Counts) -> tuple[MemoryShare, ...]:
    stage = np.where(np.isneginf(recording.lifetimes.start[rows]), len(STAGES), recording.stage[rows])
    return shares(held[rows], stage, (*STAGES, "before the recorded steps"))


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
