"""The facts of a capture's memory: what lives at the peak, by stage, module, line and kind."""

from __future__ import annotations

from typing import Any

import numpy as np

from stepscope.annotate.attribution import attribute
from stepscope.arrays import Ids
from stepscope.memory.fragmentation import find_fragmentation
from stepscope.memory.memory_facts import ACTIVE, MemoryFacts, OutOfMemory
from stepscope.memory.owners import KINDS
from stepscope.memory.recorded_allocations import AllocationRecord
from stepscope.memory.recorded_growth import recorded_growth
from stepscope.memory.recorded_lines import RecordedLines
from stepscope.memory.recorded_memory import (
    RecordedMemory,
    has_addresses,
    recorded_devices,
    recorded_memory,
    refuse_several_ranks,
)
from stepscope.memory.shares import shares
from stepscope.memory.usage import reserved_over_time
from stepscope.memory.usage_facts import usage_facts
from stepscope.trace.schema import STAGES
from stepscope.trace.trace import Trace

_BEFORE = "before the recorded steps"


def recorded_facts(trace: Trace, most: int) -> list[MemoryFacts]:
    """The facts of every device whose allocations a capture holds; `most` rows of each part.

    Raises:
        TraceError: if the trace holds no allocation, or those of several ranks.
    """
    refuse_several_ranks(trace)
    attribution = attribute(trace)
    devices = recorded_devices(trace)
    return [
        _facts(recorded_memory(trace, one, attribution), most)
        if has_addresses(trace, one)
        else usage_facts(trace, one)
        for one in devices
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
    number = int(device.rpartition(":")[2]) if ":" in device else -1
    has_segments = bool((trace["segments"]["device"] == number).any())
    return MemoryFacts(
        source=trace.metadata.source,
        device=number,
        device_name=device,
        entries=int(trace["memory"].text("device").mask(device).sum()),
        peak_bytes=peak,
        peak_ns=int(max(moment, 0)),
        reserved_peak_bytes=_reserved_peak(trace, number) if has_segments else None,
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
        growth=tuple(one for one, _ in growth),
        growth_lines=tuple(lines.name(line) for _, line in growth),
        out_of_memory=_failures(memory),
        settings=dict(trace.metadata.properties.get("allocator_settings") or {}),
    )


def _reserved_peak(trace: Trace, device: int) -> int:
    return int(reserved_over_time(trace, device)[1].max())


def _stages(recording: AllocationRecord) -> Ids:
    """Position in STAGES of each allocation, len(STAGES) before the recording, -1 if unknown."""
    before = np.isneginf(recording.lifetimes.start)
    return np.where(before, len(STAGES), recording.stage).astype(np.int64)


def module_paths(trace: Trace) -> list[str]:
    """Paths of modules; the whole model by its class."""
    modules = trace["modules"]
    return [path or f"({name})" for path, name in
            zip(modules.text("path"), modules.text("class"), strict=True)]  # fmt: skip


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
