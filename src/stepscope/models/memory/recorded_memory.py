"""The memory of recorded steps: every allocation with its lifetime, its purpose and its line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from stepscope.base.arrays import Codes, Codes8, Floats, Ids, Mask
from stepscope.errors import TraceError
from stepscope.facts.annotate.attribution import Attribution, attribute
from stepscope.facts.annotate.range_names import Line
from stepscope.models.memory.lifetimes import Lifetimes
from stepscope.models.memory.owners import KINDS
from stepscope.models.memory.recorded_allocations import AllocationRecord
from stepscope.trace.memory_schema import STORAGE_KINDS
from stepscope.trace.schema import STAGES
from stepscope.trace.trace import Trace

_FORWARD = ("forward", "loss")
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
    order = np.argsort(-held, kind="stable")
    return [names.values[code] for code in order if held[code]]


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
    code = {name: number for number, name in enumerate(KINDS)}
    life, stage = recording.lifetimes, recording.stage
    released = np.append(recording.attribution.stage, -1)[recording.released_by]
    in_root = life.end <= recording.ends[recording.root]
    forward, backward = _in(stage, *_FORWARD), _in(stage, "backward")
    updating = _in(stage, *_UPDATING)
    first_forward = _first_forward(recording)
    fed = _in(stage, "data_loading", "transfer")
    fed |= _in(stage, "other") & (life.start < first_forward) & np.isfinite(life.start)
    kind = np.full(len(life), code["unknown"], np.int64)
    kind[fed] = code["inputs"]
    kind[forward] = code["activations"]
    kind[backward] = code["temporaries"]
    # Gradients outlive backward: zero_grad releases them, or the next one replaces them.
    kind[backward & ~_in(released, "backward") & ~in_root] = code["gradients"]
    kind[updating] = code["temporaries"]
    kind[updating & np.isposinf(life.end)] = code["optimizer state"]
    kind[(forward | backward | updating) & in_root] = code["temporaries"]
    names = [
        code[STORAGE_KINDS.get(kind or "", "unknown")] for kind in recording.trace["storages"].text("kind")
    ]
    kept = recording.storage >= 0
    kind[kept] = np.array([*names, code["unknown"]], np.int64)[recording.storage[kept]]
    return kind


def _in(stage: Codes8, *names: str) -> Mask:
    return np.isin(stage, [STAGES.index(name) for name in names])


def _first_forward(recording: AllocationRecord) -> Floats:
    """When forward of the step in which each allocation begins starts; inf without one."""
    steps, events = recording.trace["steps"], recording.trace.events
    if not len(steps):
        return np.full(len(recording.lifetimes), np.inf)
    rows = np.flatnonzero(np.isin(events["stage"], [STAGES.index(name) for name in _FORWARD]))
    starts = np.append(events["start_ns"][rows].astype(np.float64), np.inf)
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
        state = memory.lifetimes.kind[: len(code)] == KINDS.index("optimizer state")
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
    updating = attribution.stage == STAGES.index("optimizer")
    rows = np.flatnonzero(updating & (attribution.lines >= 0))
    if not len(rows):
        return -1
    codes, count = np.unique(attribution.lines[rows], return_counts=True)
    stack = attribution.stacks[int(codes[np.argmax(count)])]
    return place.get(stack[-1], -1) if stack else -1
