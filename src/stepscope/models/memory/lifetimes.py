"""Allocations as rows with a beginning and an end, and the memory in use that they add up to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from stepscope.base.arrays import Codes, Counts, Floats, Ids, Mask, Times
from stepscope.trace.columns import ParallelArrays
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

TAKES = ("segment_alloc", "segment_map")
RETURNS = ("segment_free", "segment_unmap")


@dataclass(frozen=True, eq=False)
class Lifetimes(ParallelArrays):
    """Allocations of one device; every array has shape (n,)."""

    bytes: Counts
    start: Floats  # ns; -inf before the recording, inf if alive at its end
    end: Floats  # ns; -inf before the recording, inf if alive at its end
    kind: Ids  # position in `KINDS`
    # number of the recorded allocation that it is, or of which it is a copy; -1 for one that a change adds
    recorded: Ids

    @classmethod
    def added(cls, size: ArrayLike, start: ArrayLike, end: ArrayLike, kind: ArrayLike) -> Lifetimes:
        """Allocations that a change adds."""
        begins, ends = (np.asarray(time, np.float64) for time in (start, end))
        bytes_, kinds = (np.asarray(column, np.int64) for column in (size, kind))
        return cls(bytes_, begins, ends, kinds, np.full(len(bytes_), -1))

    def __len__(self) -> int:
        return len(self.bytes)

    def plus(self, other: Lifetimes) -> Lifetimes:
        return Lifetimes.joined([self, other])

    def changed(self, **columns: Any) -> Lifetimes:
        return replace(self, **columns)

    def moments(self) -> tuple[Floats, Ids, Mask]:
        """When allocations begin or end, in order of time: times, rows, and whether they begin then.

        Releases come first at one moment, as memory is given back before it is taken again.
        """
        ends, begins = (np.flatnonzero(np.isfinite(time)) for time in (self.end, self.start))
        times = np.concatenate([self.end[ends], self.start[begins]])
        order = np.argsort(times, kind="stable")
        return times[order], np.concatenate([ends, begins])[order], order >= len(ends)

    def over_time(self) -> tuple[Floats, Counts]:
        """The bytes in use after each change: times and bytes, the first before any change."""
        times, rows, begins = self.moments()
        changes = np.where(begins, self.bytes[rows], -self.bytes[rows])
        before = int(self.bytes[np.isneginf(self.start)].sum())
        level = before + np.concatenate([[0], np.cumsum(changes)]).astype(np.int64)
        return np.concatenate([[-np.inf], times]), level

    def peak(self) -> tuple[int, float]:
        """The most bytes in use, and when.

        Example:
            >>> two = Lifetimes(np.array([5, 7]), np.array([0.0, 1.0]), np.array([2.0, np.inf]),
            ...                 np.array([0, 0]), np.array([0, 1]))
            >>> two.peak()[0]
            12
        """
        times, level = self.over_time()
        place = int(np.argmax(level))
        return int(level[place]), float(times[place])

    def alive(self, time: float) -> Mask:
        """Which rows are in use at a moment, after its changes, shape (n,)."""
        return np.asarray((self.start <= time) & (self.end > time))


def snapshot_lifetimes(trace: Trace, device: int, kind: Codes) -> Lifetimes:
    """The allocations of a device; `recorded` is their allocations.id."""
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


def bytes_before(table: Table) -> int:
    """What was in use before the changes of a device in table `memory`; 0 if the file does not say."""
    stated = np.flatnonzero(table["allocated_bytes"] >= 0)[:1]
    return sum(int(table["allocated_bytes"][row] - table["bytes"][: row + 1].sum()) for row in stated)


def reserved_over_time(trace: Trace, device: int) -> tuple[Times, Counts]:
    """The bytes that the allocator has reserved on a device: times and bytes, each shape (n,)."""
    events, segments = trace["memory_events"], trace["segments"]
    action = events.text("action")
    mine = (events["device"] == device) & action.mask(*TAKES, *RETURNS)
    changes = events["bytes"][mine] * np.where(action.mask(*TAKES)[mine], 1, -1)
    last = int(segments["bytes"][segments["device"] == device].sum())
    times = np.concatenate([[0], events["time_ns"][mine]]).astype(np.int64)
    return times, last - changes.sum() + np.concatenate([[0], np.cumsum(changes)]).astype(np.int64)
