"""What fills a device's memory, what fragments it, and what to do: from a snapshot or a capture."""

from __future__ import annotations

from stepscope.memory.memory_facts import MemoryFacts
from stepscope.memory.recorded_facts import recorded_facts
from stepscope.memory.snapshot_facts import snapshot_facts
from stepscope.trace.trace import Trace

__all__ = ["MemoryFacts", "memory_facts"]


def memory_facts(trace: Trace, most: int = 12) -> list[MemoryFacts]:
    """The facts of every device in a memory snapshot, or in a capture made with `--memory`.

    Args:
        trace: as `stepscope.open` reads it.
        most: rows of each part of the peak.

    Raises:
        TraceError: if the trace holds no allocation.
    """
    found = recorded_facts if len(trace["memory"]) else snapshot_facts
    return found(trace, most)
