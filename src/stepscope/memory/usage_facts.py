"""The facts of memory whose changes were recorded without addresses: its peak, by kind."""

from __future__ import annotations

import numpy as np

from stepscope.memory.memory_facts import MemoryFacts
from stepscope.memory.owners import KINDS
from stepscope.memory.recorded_usage import RecordedUsage
from stepscope.memory.shares import MemoryShare
from stepscope.trace.trace import Trace


def usage_facts(trace: Trace, device: str) -> MemoryFacts:
    """The facts of one device: which release ends which allocation is unknown, so only kinds.

    Args:
        trace: with changes in the table `memory`.
        device: its name in that table.
    """
    usage = RecordedUsage.of(trace, device)
    levels = usage.levels()
    place = int(np.argmax(levels))
    held = usage.at(place)
    kinds = [
        MemoryShare(name, int(size), 0) for name, size in zip(KINDS, held, strict=True) if size
    ]
    return MemoryFacts(
        source=trace.metadata.source,
        device=int(device.rpartition(":")[2]) if ":" in device else -1,
        device_name=device,
        entries=len(usage.time_ns),
        peak_bytes=int(levels[place]),
        peak_ns=int(usage.time_ns[place - 1]) if place else 0,
        reserved_peak_bytes=_reserved_peak(trace, device),
        kinds=tuple(sorted(kinds, key=lambda one: -one.bytes)),
        lines=(),
        fragmentation=None,
        growth=(),
        growth_lines=(),
        out_of_memory=(),
        settings={},
        unassigned_bytes=int(held[KINDS.index("unknown")]),
        has_lifetimes=False,
    )


def _reserved_peak(trace: Trace, device: str) -> int | None:
    table = trace["memory"]
    reserved = table["reserved_bytes"][table.text("device").mask(device)]
    return int(reserved.max()) if (reserved > 0).any() else None
