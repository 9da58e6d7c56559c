"""The most memory that a rank had allocated while recording."""

from __future__ import annotations

from stepscope.trace.table import Table


def allocated_peaks(memory: Table, rank: int) -> dict[str, int]:
    """The peak of each device, bytes; empty where no change of memory was recorded.

    Args:
        memory: the table `memory`.
        rank: of the process.
    """
    known = memory.take((memory["rank"] == rank) & (memory["allocated_bytes"] >= 0))
    device = known.text("device")
    return {
        name: int(known["allocated_bytes"][device.mask(name)].max())
        for name in device.compact().values
    }
