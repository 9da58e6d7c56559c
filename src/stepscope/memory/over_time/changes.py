"""Every change of a device's memory in order of time, and whose it is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.arrays import Counts, Ids32, Rows, Times
from stepscope.memory.lifetimes import Lifetimes
from stepscope.memory.recorded_usage import RecordedUsage


@dataclass(frozen=True, eq=False)
class MemoryChanges:
    """The changes of one device.

    Attributes:
        before: bytes of each owner before the first change, shape (owners,). An owner is an
            allocation; a kind, where it is unknown which release ends which allocation.
        time_ns: when, ascending, shape (n,).
        change: bytes, negative for a release, shape (n,).
        owner: whose, shape (n,).
    """

    before: Counts
    time_ns: Times
    change: Counts
    owner: Ids32

    @classmethod
    def of_lifetimes(cls, life: Lifetimes) -> MemoryChanges:
        """Allocations and releases; at one moment releases come first, as in the allocator."""
        ends, begins = (
            np.flatnonzero(np.isfinite(life.end)),
            np.flatnonzero(np.isfinite(life.start)),
        )
        time = np.concatenate([life.end[ends], life.start[begins]]).astype(np.int64)
        order = np.argsort(time, kind="stable")
        change = np.concatenate([-life.bytes[ends], life.bytes[begins]])
        owner = np.concatenate([ends, begins]).astype(np.int32)
        before = np.where(np.isneginf(life.start), life.bytes, 0)
        return cls(before, time[order], change[order], owner[order])

    @classmethod
    def of_usage(cls, usage: RecordedUsage) -> MemoryChanges:
        """Changes of kinds."""
        return cls(usage.before, usage.time_ns, usage.change, usage.kind.astype(np.int32))

    @cached_property
    def levels(self) -> Counts:
        """The bytes in use before the first change, and after each, shape (n + 1,)."""
        return int(self.before.sum()) + np.append(0, np.cumsum(self.change))

    @cached_property
    def peak(self) -> int:
        """The number of changes after which most is in use; the first of several."""
        return int(np.argmax(self.levels))

    def count_until(self, time_ns: int) -> int:
        """The number of changes up to a moment, those at that moment included."""
        return int(np.searchsorted(self.time_ns, time_ns, side="right"))

    def holding(self, count: int) -> Rows:
        """The owners that hold memory after so many changes, ascending."""
        return np.flatnonzero(self.held(count))

    def held(self, count: int) -> Counts:
        """The bytes of each owner after so many changes, shape (owners,)."""
        added = np.bincount(self.owner[:count], self.change[:count], len(self.before))
        return self.before + added.astype(np.int64)
