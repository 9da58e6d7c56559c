"""The memory of recorded steps: every allocation with its lifetime, its users, purpose and line.

The profiler records each allocation and release with the operator around it. `stepscope run
--memory` adds which storages training keeps, and which tensors each operator reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from stepscope.base.arrays import Codes, Codes8, Counts, Floats, Ids, Mask
from stepscope.base.numbers import STORAGE_KINDS
from stepscope.errors import TraceError
from stepscope.facts.annotate.attribution import Attribution, attribute
from stepscope.facts.annotate.range_names import Line
from stepscope.models.memory.lifetimes import Lifetimes, bytes_before
from stepscope.models.memory.owners import (
    ACTIVATIONS,
    GRADIENTS,
    INPUTS,
    KINDS,
    OPTIMIZER,
    TEMPORARIES,
    UNKNOWN,
)
from stepscope.trace.nesting import last_started
from stepscope.trace.row_order import places_among
from stepscope.trace.schema import FORWARD_STAGES, STAGES
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace


@dataclass(frozen=True, eq=False)
class AllocationUses:
    """Which recorded allocation an operator reads or writes; every array has shape (m,)."""

    allocation: Ids
    event: Ids  # events.id of the operator
    root: Ids  # events.id of the outermost operator around it, -1 if unknown
    saver: Ids  # of a backward operator the forward operator that kept the tensor for it, -1 for others
    backward: Mask  # whether the operator is part of backward
    row: Ids  # row of the table `tensor_uses`, -1 for the release of an allocation


@dataclass(frozen=True, eq=False)
class AllocationRecord:
    """The allocations of one device as they were recorded, which no change alters."""

    trace: Trace
    device: str  # `cpu` or `cuda:0`
    attribution: Attribution
    lifetimes: Lifetimes  # of the allocations, none with a known kind
    address: Ids  # of each allocation, -1 if unknown, shape (recorded,)
    # events.id of the innermost event around each allocation; -1 before the recording and outside of
    # every event, shape (recorded,)
    event: Ids
    storage: Ids  # storages.id of each allocation that training keeps, -1 for others
    released_by: Ids  # events.id of the innermost event around its release, -1 if unknown

    @classmethod
    def of(cls, trace: Trace, device: str, attribution: Attribution) -> AllocationRecord:
        """Each allocation in the history, then what was there before it."""
        table = trace["memory"]
        table = table.take(np.flatnonzero(table.text("device").mask(device) & (table["bytes"] != 0)))
        begin, end, old, since = _paired(table)
        size, kept, freed, since = _unseen(trace, device, table, old, since)
        nowhere, release = np.full(len(size), -1, np.int64), np.concatenate([end, freed])
        is_seen = np.append(table["bytes"], 0)[release] < 0
        storage = _kept_at_end(trace, device, table, begin, end)
        kept_before = np.append(trace["storages"]["address"], -1)[kept]
        return cls(
            trace=trace,
            device=device,
            attribution=attribution,
            lifetimes=_lifetimes(table, begin, release, size, since),
            address=np.concatenate([table["address"][begin], kept_before]).astype(np.int64),
            event=np.concatenate([table["event"][begin], nowhere]).astype(np.int64),
            storage=np.concatenate([storage, kept]),
            released_by=np.where(is_seen, np.append(table["event"], -1)[release], -1).astype(np.int64),
        )

    def __len__(self) -> int:
        return len(self.lifetimes)

    @cached_property
    def uses(self) -> AllocationUses:
        """Who uses each recorded allocation; empty if that was not recorded."""
        return _find_uses(self)

    @cached_property
    def root(self) -> Ids:
        """events.id of the outermost operator around each recorded allocation, -1 if unknown."""
        return np.append(self.attribution.root, -1)[self.event].astype(np.int64)

    @cached_property
    def stage(self) -> Codes8:
        """Position in STAGES of each recorded allocation, -1 if unknown."""
        return np.append(self.attribution.stage, -1)[self.event].astype(np.int8)

    @cached_property
    def module(self) -> Ids:
        """modules.id of each recorded allocation: of its operator, or of what training keeps."""
        paths = {path: row for row, path in enumerate(self.trace["modules"].text("path"))}
        of_storage = [paths.get(path, -1) for path in self.trace["storages"].text("path")]
        owner = np.array([*of_storage, -1], np.int64)
        own = np.append(self.attribution.module, -1)[self.event]
        return np.where(self.storage >= 0, owner[self.storage], own).astype(np.int64)

    @cached_property
    def starts(self) -> Floats:
        """When each event begins, ns; the last value, inf, is of events.id -1."""
        return np.append(self.trace.events["start_ns"].astype(np.float64), np.inf)

    @cached_property
    def ends(self) -> Floats:
        """When each event ends, ns; the last value, -inf, is of events.id -1."""
        table = self.trace.events
        return np.append((table["start_ns"] + table["duration_ns"]).astype(np.float64), -np.inf)

    @cached_property
    def last_read(self) -> Floats:
        """The end of the last forward operator that reads each allocation, or that makes it.

        The last value, -inf, is of allocation -1.
        """
        read = np.append(self.ends[self.root], -np.inf)
        forward = ~self.uses.backward
        np.maximum.at(read, self.uses.allocation[forward], self.ends[self.uses.event[forward]])
        return read


def _lifetimes(table: Table, begin: Ids, release: Ids, unseen: Counts, since: Ids) -> Lifetimes:
    times = np.append(table["time_ns"].astype(np.float64), np.inf)
    size = np.concatenate([table["bytes"][begin], unseen])
    return Lifetimes(
        bytes=size.astype(np.int64),
        start=np.concatenate([times[begin], np.where(since >= 0, times[since], -np.inf)]),
        end=times[release],
        kind=np.full(len(size), UNKNOWN),
        recorded=np.arange(len(size)),
    )


def _paired(table: Table) -> tuple[Ids, Ids, Ids, Ids]:
    """Rows of allocations and what ends each; releases alone and what each of them begins after.

    -1 is outside of the recording. Threads that are not recorded, as those of DataParallel, allocate
    what this one releases, and the other way round: what happens next at an address, or happened
    there before, is as late, or as early, as it can have been.
    """
    order = np.lexsort((np.arange(len(table)), table["address"]))
    takes, address = table["bytes"][order] > 0, table["address"][order]
    follows = np.append(False, address[1:] == address[:-1])[: len(order)]
    before = np.where(follows, np.roll(order, 1), -1)
    after = np.where(np.roll(follows, -1), np.roll(order, -1), -1)
    alone = ~takes & ~(follows & np.roll(takes, 1))
    return order[takes], after[takes], order[alone], before[alone]


def _unseen(
    trace: Trace, device: str, table: Table, released: Ids, since: Ids
) -> tuple[Counts, Ids, Ids, Ids]:
    """Bytes, storages.id, row of release and row of the earliest begin of what nobody saw allocated;
    -1 for before the recording. The last is what nothing is known of."""
    storages = _storages(trace, device, "before")
    address = trace["storages"]["address"][storages]
    by_address = {int(table["address"][row]): int(row) for row in released[since < 0][::-1]}
    ends = np.array([by_address.get(int(place), -1) for place in address], np.int64)
    left = ~np.isin(released, ends)
    size = np.concatenate([trace["storages"]["bytes"][storages], -table["bytes"][released[left]]])
    since = np.concatenate([np.full(len(storages), -1), since[left], [-1]])
    rest = max(bytes_before(table) - int(size[since[:-1] < 0].sum()), 0)
    storage = np.concatenate([storages, np.full(int(left.sum()) + 1, -1)]).astype(np.int64)
    release = np.concatenate([ends, released[left], [-1]]).astype(np.int64)
    return np.append(size, rest).astype(np.int64), storage, release, since


def _storages(trace: Trace, device: str, moment: str) -> Ids:
    table = trace["storages"]
    chosen = table.text("device").mask(device) & table.text("moment").mask(moment)
    return np.flatnonzero(chosen).astype(np.int64)


def _kept_at_end(trace: Trace, device: str, table: Table, begin: Ids, end: Ids) -> Ids:
    """storages.id of each allocation that is alive at the end and that training keeps."""
    rows = _storages(trace, device, "after")
    kept = places_among(trace["storages"]["address"][rows], table["address"][begin])
    return np.where(end < 0, np.append(rows, -1)[kept], -1)


def _find_uses(recording: AllocationRecord) -> AllocationUses:
    table, address = recording.trace["tensor_uses"], recording.address
    rows = np.flatnonzero(table["event"] >= 0)
    allocation = _alive_then(address, recording.lifetimes, table["address"][rows], table["time_ns"][rows])
    rows, allocation = rows[allocation >= 0], allocation[allocation >= 0]
    event = table["event"][rows].astype(np.int64)
    # What releases a tensor held it until then, also where no operator of it is recorded.
    gone = np.flatnonzero(recording.released_by >= 0)
    event = np.concatenate([event, recording.released_by[gone]])
    allocation = np.concatenate([allocation, gone])
    root = recording.attribution.root[event].astype(np.int64)
    saver = np.append(recording.trace.events["forward_event"], -1)[root]
    backward = recording.attribution.backward[event]
    row = np.concatenate([rows, np.full(len(gone), -1)]).astype(np.int64)
    saver = np.where(backward, saver, -1).astype(np.int64)
    return AllocationUses(allocation, event, root, saver, backward, row)


def _alive_then(addresses: Ids, life: Lifetimes, wanted: Ids, time: Ids) -> Ids:
    """The allocation that lies at an address at a time, -1 if none is known."""
    _, code = np.unique(np.concatenate([addresses, wanted]), return_inverse=True)
    own, asked = np.split(code, [len(addresses)])
    order = np.argsort(life.start, kind="stable")
    start = np.maximum(life.start, -1).astype(np.int64)[order]  # what was there before is older
    last = np.append(order, -1)[last_started(asked, time, own[order], start)]
    return np.where(np.append(life.end, -np.inf)[last] >= time, last, -1).astype(np.int64)


_UPDATING = ("optimizer", "zero_grad")


@dataclass(frozen=True, eq=False)
class RecordedMemory:
    """The allocations of one device over the recorded steps."""

    recording: AllocationRecord
    lifetimes: Lifetimes  # of the allocations with their kinds, changed or not

    def with_lifetimes(self, lifetimes: Lifetimes) -> RecordedMemory:
        """The same recording with changed lifetimes."""
        return replace(self, lifetimes=lifetimes)


def recorded_devices(trace: Trace) -> list[str]:
    """The devices whose allocations a trace holds, those with most bytes first."""
    table = trace["memory"]
    names = table.text("device")
    held = np.bincount(names.codes, np.abs(table["bytes"]), len(names.values))
    return [names.values[code] for code in np.argsort(-held, kind="stable") if held[code]]


def device_number(device: str) -> int:
    """The number of a device by its name, -1 for the CPU."""
    return int(device.rpartition(":")[2]) if ":" in device else -1


def module_paths(trace: Trace) -> list[str]:
    """Paths of modules; the whole model by its class."""
    modules = trace["modules"]
    rows = zip(modules.text("path"), modules.text("class"), strict=True)
    return [path or f"({name})" for path, name in rows]


def refuse_several_ranks(trace: Trace) -> None:
    """Each rank is another process, whose memory does not add up with that of others; raises
    TraceError if the trace holds the allocations of several ranks."""
    ranks = np.unique(trace["memory"]["rank"])
    if len(ranks) > 1:
        raise TraceError(
            f"{trace.metadata.source} holds the allocations of {len(ranks)} ranks, each of another "
            "process; open the file of one rank"
        )


def has_addresses(trace: Trace, device: str) -> bool:
    """Whether each recorded change of a device has an address, so that lifetimes are known."""
    table = trace["memory"]
    return bool((table["address"][table.text("device").mask(device)] != -1).all())


def recorded_memory(
    trace: Trace, device: str | None = None, attribution: Attribution | None = None
) -> RecordedMemory:
    """The memory of a capture's steps.

    Args:
        trace: a capture with `--memory`, or any trace with allocations.
        device: one of `recorded_devices`; by default that with most bytes, a GPU if there is one.

    Raises:
        TraceError: if the trace holds no allocation, none with an address, or those of several
            ranks, whose addresses have nothing to do with each other.
    """
    devices = recorded_devices(trace)
    if not devices:
        raise TraceError(
            f"{trace.metadata.source} holds no allocation; record it with: stepscope run --memory SCRIPT"
        )
    refuse_several_ranks(trace)
    gpus = [name for name in devices if name != "cpu"]
    chosen = device or (gpus or devices)[0]
    if not has_addresses(trace, chosen):
        raise TraceError(
            f"{trace.metadata.source} records allocations of {chosen} without addresses, so it is "
            "unknown which release ends which allocation; record it with a newer PyTorch"
        )
    recording = AllocationRecord.of(trace, chosen, attribution or attribute(trace))
    return RecordedMemory(recording, recording.lifetimes.changed(kind=_kinds(recording)))


def _kinds(recording: AllocationRecord) -> Codes:
    life, stage = recording.lifetimes, recording.stage
    released = np.append(recording.attribution.stage, -1)[recording.released_by]
    in_root = life.end <= recording.ends[recording.root]
    forward, backward = _in(stage, *FORWARD_STAGES), _in(stage, "backward")
    updating = _in(stage, *_UPDATING)
    fed = _in(stage, "data_loading", "transfer")
    before = (life.start < _first_forward(recording)) & np.isfinite(life.start)
    fed |= _in(stage, "other") & before & (not recording.trace.metadata.is_of_xla)  # a program's own
    kind = np.full(len(life), UNKNOWN, np.int64)
    kind[fed] = INPUTS
    kind[forward] = ACTIVATIONS
    kind[backward] = TEMPORARIES
    # Gradients outlive backward: zero_grad releases them, or the next one replaces them.
    kind[backward & ~_in(released, "backward") & ~in_root] = GRADIENTS
    kind[updating] = TEMPORARIES
    kind[updating & np.isposinf(life.end)] = OPTIMIZER
    kind[(forward | backward | updating) & in_root] = TEMPORARIES
    storages = recording.trace["storages"].text("kind")
    of_storage = [KINDS.index(STORAGE_KINDS.get(name or "", "unknown")) for name in storages]
    kept = recording.storage >= 0
    kind[kept] = np.array([*of_storage, UNKNOWN], np.int64)[recording.storage[kept]]
    return kind


def _in(stage: Codes8, *names: str) -> Mask:
    return np.isin(stage, [STAGES.index(name) for name in names])


def _first_forward(recording: AllocationRecord) -> Floats:
    """When forward of the step in which each allocation begins starts; inf without one."""
    steps, events = recording.trace["steps"], recording.trace.events
    if not len(steps):
        return np.full(len(recording.lifetimes), np.inf)
    forward = _in(events["stage"], *FORWARD_STAGES)
    starts = np.append(events["start_ns"][forward].astype(np.float64), np.inf)
    first = starts[np.searchsorted(starts, steps["start_ns"])]
    step = np.searchsorted(steps["start_ns"], recording.lifetimes.start, side="right") - 1
    return first[np.maximum(step, 0)]


@dataclass(frozen=True, eq=False)
class RecordedLines:
    """The lines of a recording."""

    names: list[str]  # `file:line` of the innermost line of each stack, and of those that made parameters
    code: Ids  # position in `names` of each recorded allocation, -1 if unknown, shape (recorded,)
    update: int  # position of the line that calls the optimizer, -1 if unknown

    @classmethod
    def of(cls, memory: RecordedMemory) -> RecordedLines:
        """The lines of allocations; optimizer state without one has that of the optimizer."""
        recording = memory.recording
        place = {line: number for number, line in enumerate(_lines(recording))}
        stacks, storages = recording.attribution.stacks, recording.trace["storages"]
        of_stack = np.array([*(place[stack[-1]] if stack else -1 for stack in stacks), -1], np.int64)
        made = zip(storages.text("file"), storages["line"].tolist(), strict=True)
        of_storage = np.array([place.get((file or "", line), -1) for file, line in made] + [-1], np.int64)
        code = of_stack[np.append(recording.attribution.lines, -1)[recording.event]]
        code = np.where(recording.storage >= 0, of_storage[recording.storage], code)
        state = memory.lifetimes.kind[: len(code)] == OPTIMIZER
        update = _update_line(recording, place)
        return cls(
            names=[f"{file}:{line}" for file, line in place],
            code=np.where(state & (code < 0), update, code).astype(np.int64),
            update=update,
        )

    def name(self, code: int) -> str:
        """`file:line`; empty for -1."""
        return self.names[code] if code >= 0 else ""

    def stack(self, recording: AllocationRecord, number: int) -> list[str]:
        """The lines that led to a recorded allocation, innermost first; one of what training keeps."""
        attribution, event = recording.attribution, int(recording.event[number])
        known = int(attribution.lines[event]) if event >= 0 and recording.storage[number] < 0 else -1
        if known >= 0:
            return [f"{file}:{line}" for file, line in reversed(attribution.stacks[known])]
        return [name] if (name := self.name(int(self.code[number]))) else []


def _lines(recording: AllocationRecord) -> dict[Line, None]:
    storages = recording.trace["storages"]
    made = zip(storages.text("file"), storages["line"].tolist(), strict=True)
    stacks = [stack[-1] for stack in recording.attribution.stacks if stack]
    return dict.fromkeys([*stacks, *((file or "", line) for file, line in made if line >= 0)])


def _update_line(recording: AllocationRecord, place: Mapping[Line, int]) -> int:
    """The line that calls the optimizer, which made its state before the recording."""
    attribution = recording.attribution
    rows = np.flatnonzero((attribution.stage == STAGES.index("optimizer")) & (attribution.lines >= 0))
    if not len(rows):
        return -1
    codes, count = np.unique(attribution.lines[rows], return_counts=True)
    stack = attribution.stacks[int(codes[np.argmax(count)])]
    return place.get(stack[-1], -1) if stack else -1
