"""Memory over time: what is allocated, and what the caching allocator has reserved."""

from __future__ import annotations

import numpy as np

from stepscope.arrays import Codes, Counts, Times
from stepscope.memory.lifetimes import Lifetimes
from stepscope.trace.trace import Trace

_TAKES = ("segment_alloc", "segment_map")
_RETURNS = ("segment_free", "segment_unmap")


def snapshot_lifetimes(trace: Trace, device: int, kind: Codes) -> Lifetimes:
    """The allocations of a device; `recorded` is their allocations.id.

    Args:
        trace: a memory snapshot.
        device: its number.
        kind: position in `KINDS` of each row of `allocations`.
    """
    table = trace["allocations"]
    rows = np.flatnonzero(table["device"] == device).astype(np.int64)
    start, end = table["start_ns"][rows], table["end_ns"][rows]
    return Lifetimes(
        bytes=table["bytes"][rows].astype(np.int64),
        start=np.where(start >= 0, start, -np.inf),
        end=np.where(end >= 0, end, np.inf),
        kind=kind[rows],
        recorded=rows,
    )


def reserved_over_time(trace: Trace, device: int) -> tuple[Times, Counts]:
    """The bytes that the allocator has reserved on a device: times and bytes, each shape (n,)."""
    events, segments = trace["memory_events"], trace["segments"]
    action = events.text("action")
    mine = (events["device"] == device) & action.mask(*_TAKES, *_RETURNS)
    sign = np.where(action.mask(*_TAKES)[mine], 1, -1)
    changes = events["bytes"][mine] * sign
    last = int(segments["bytes"][segments["device"] == device].sum())
    times = np.concatenate([[0], events["time_ns"][mine]]).astype(np.int64)
    return times, last - changes.sum() + np.concatenate([[0], np.cumsum(changes)]).astype(np.int64)
