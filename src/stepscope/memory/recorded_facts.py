"""The facts of a capture's memory: what lives at the peak, and what each step leaves behind."""

from __future__ import annotations

from typing import Any

import numpy as np

from stepscope.annotate.attribution import attribute
from stepscope.arrays import Ids
from stepscope.memory.lifetimes import reserved_over_time
from stepscope.memory.memory_facts import (
    ACTIVE,
    Growth,
    MemoryFacts,
    MemoryShare,
    OutOfMemory,
    shares,
)
from stepscope.memory.owners import KINDS
from stepscope.memory.recorded_allocations import AllocationRecord
from stepscope.memory.recorded_memory import (
    RecordedLines,
    RecordedMemory,
    device_number,
    has_addresses,
    module_paths,
    recorded_devices,
    recorded_memory,
    refuse_several_ranks,
)
from stepscope.memory.segments import find_fragmentation
from stepscope.memory.stacked_levels import MemoryChanges
from stepscope.trace.schema import STAGES
from stepscope.trace.trace import Trace

_BEFORE = "before the recorded steps"
_LEAST_STEPS = 2  # besides the last, whose tensors may still be in use
_LEAST_OPERATORS = 3  # in each step that leave activations: they are a graph
_LEAST_BYTES = 1 << 10  # of all steps: less is not worth a finding
_TRAINING = [KINDS.index(name) for name in ("weights", "buffers", "gradients", "optimizer state")]


def recorded_facts(trace: Trace, most: int) -> list[MemoryFacts]:
    """The facts of every device whose allocations a capture holds; `most` rows of each part.

    Raises:
        TraceError: if the trace holds no allocation, or those of several ranks.
    """
    refuse_several_ranks(trace)
    attribution = attribute(trace)
    return [
        _facts(recorded_memory(trace, device, attribution), most)
        if has_addresses(trace, device)
        else _usage_facts(trace, device)
        for device in recorded_devices(trace)
    ]


def _facts(memory: RecordedMemory, most: int) -> MemoryFacts:
    recording = memory.recording
    trace, device = recording.trace, recording.device
    peak, moment = memory.lifetimes.peak()
    alive = np.flatnonzero(memory.lifetimes.alive(moment)).astype(np.int64)
    size, kind = memory.lifetimes.bytes[alive], memory.lifetimes.kind[alive]
    active = alive[np.isin(kind, ACTIVE)]
    active_bytes = memory.lifetimes.bytes[active]
    lines = RecordedLines.of(memory)
    growth = recorded_growth(memory, lines)
    number = device_number(device)
    has_segments = bool((trace["segments"]["device"] == number).any())
    return MemoryFacts(
        source=trace.metadata.source,
        device=number,
        device_name=device,
        entries=int(trace["memory"].text("device").mask(device).sum()),
        peak_bytes=peak,
        peak_ns=int(max(moment, 0)),
        reserved_peak_bytes=int(reserved_over_time(trace, number)[1].max())
        if has_segments
        else None,
        kinds=shares(size, kind, KINDS)[:most],
        lines=shares(size, lines.code[alive], lines.names)[:most],
        stages=shares(size, _stages(recording)[alive], (*STAGES, _BEFORE))[:most],
        modules=shares(size, recording.module[alive], module_paths(trace))[:most],
        activation_modules=shares(active_bytes, recording.module[active], module_paths(trace))[
            :most
        ],
        activation_lines=shares(active_bytes, lines.code[active], lines.names)[:most],
        update_line=lines.name(lines.update),
        unassigned_bytes=int(size[kind == KINDS.index("unknown")].sum()),
        fragmentation=find_fragmentation(trace, number) if has_segments else None,
        growth=tuple(found for found, _ in growth),
        growth_lines=tuple(lines.name(line) for _, line in growth),
        out_of_memory=_failures(memory),
        settings=dict(trace.metadata.properties.get("allocator_settings") or {}),
    )


def _stages(recording: AllocationRecord) -> Ids:
    """Position in STAGES of each allocation, len(STAGES) before the recording, -1 if unknown."""
    before = np.isneginf(recording.lifetimes.start)
    return np.where(before, len(STAGES), recording.stage).astype(np.int64)


def _failures(memory: RecordedMemory) -> tuple[OutOfMemory, ...]:
    recording = memory.recording
    failed: dict[str, Any] | None = recording.trace.metadata.properties.get("out_of_memory")
    if failed is None or failed["device"] != recording.device:
        return ()
    return (
        OutOfMemory(
            time_ns=-1, requested=failed["requested_bytes"], device_free=None,
            allocated=int(memory.lifetimes.over_time()[1][-1]), reserved=None,
            place=f"{failed['file']}:{failed['line']}" if failed["file"] else "",
            module=failed["module"],
        ),
    )  # fmt: skip


def recorded_growth(memory: RecordedMemory, lines: RecordedLines) -> list[tuple[Growth, int]]:
    """What piles up, the largest first, each with the position of its line, -1 where unknown.

    An allocation piles up if it outlives the step after its own and is still there at the end,
    and its line leaves such allocations in every step but the last. Activations of several
    operators are one autograd graph that something keeps; its line is that of its last value.
    """
    left, step = _left_behind(memory)
    steps = len(memory.recording.trace["steps"]) - 1
    if steps < _LEAST_STEPS or not len(left):
        return []
    line = lines.code
    left = left[np.isin(line[left], _lines_of_every_step(line[left], step[left], steps))]
    graph = left[memory.lifetimes.kind[left] == KINDS.index("activations")]
    found = []
    if len(np.unique(memory.recording.root[graph])) >= _LEAST_OPERATORS * steps:
        # Of one graph the last value is what the program holds.
        results = _results(memory, graph)
        last = int(line[results[np.argmax(memory.recording.lifetimes.start[results])]])
        found += _every_step(memory, graph, step, steps, last, keeps_graph=True)
        left = np.setdiff1d(left, graph)
    for number in np.unique(line[left]).tolist():
        found += _every_step(memory, left[line[left] == number], step, steps, number)
    return sorted(found, key=lambda growth: -growth[0].bytes)


def _results(memory: RecordedMemory, graph: Ids) -> Ids:
    """Values of a graph that were computed from others of it; all, if reads were not recorded."""
    recording, uses = memory.recording, memory.recording.uses
    root = np.append(recording.attribution.root, -1)[uses.event]
    reads = np.isin(uses.allocation, graph) & ~uses.backward
    reads &= root != recording.root[uses.allocation]
    computed = graph[np.isin(recording.root[graph], root[reads])]
    return computed if len(computed) else graph


def _lines_of_every_step(line: Ids, step: Ids, steps: int) -> Ids:
    """A variable holds its value until the next step gives it another: that is in one step only."""
    pairs = np.unique(np.stack([line, step]), axis=1)
    found, count = np.unique(pairs[0], return_counts=True)
    result: Ids = found[count >= steps]
    return result


def _left_behind(memory: RecordedMemory) -> tuple[Ids, Ids]:
    """Allocations of earlier steps that are alive at the end; and each allocation's step."""
    recording = memory.recording
    life, steps = recording.lifetimes, recording.trace["steps"]
    step = np.searchsorted(steps["start_ns"], life.start, side="right") - 1
    training = np.isin(memory.lifetimes.kind[: len(life)], _TRAINING) | (recording.storage >= 0)
    left = np.isposinf(life.end) & np.isfinite(life.start) & ~training
    left &= (step >= 0) & (step < len(steps) - 1)
    return np.flatnonzero(left).astype(np.int64), step.astype(np.int64)


def _every_step(
    memory: RecordedMemory, rows: Ids, step: Ids, steps: int, line: int, keeps_graph: bool = False
) -> list[tuple[Growth, int]]:
    size = int(memory.recording.lifetimes.bytes[rows].sum())
    if len(np.unique(step[rows])) < steps or size < _LEAST_BYTES:
        return []
    return [(Growth(-1, len(rows), size, size // steps, keeps_graph), line)]


def _usage_facts(trace: Trace, device: str) -> MemoryFacts:
    """The facts of changes without addresses: no release is known to end an allocation."""
    changes = MemoryChanges.of_kinds(trace, device)
    held = changes.held(changes.peak)
    kinds = [
        MemoryShare(name, int(size), 0) for name, size in zip(KINDS, held, strict=True) if size
    ]
    table = trace["memory"]
    reserved = table["reserved_bytes"][table.text("device").mask(device)]
    return MemoryFacts(
        source=trace.metadata.source,
        device=device_number(device),
        device_name=device,
        entries=len(changes.time_ns),
        peak_bytes=int(changes.levels[changes.peak]),
        peak_ns=int(changes.time_ns[changes.peak - 1]) if changes.peak else 0,
        reserved_peak_bytes=int(reserved.max()) if (reserved > 0).any() else None,
        kinds=tuple(sorted(kinds, key=lambda share: -share.bytes)),
        unassigned_bytes=int(held[KINDS.index("unknown")]),
        has_lifetimes=False,
    )
