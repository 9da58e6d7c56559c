"""Memory over time by kind, from recorded changes of which no address is known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.arrays import Codes, Counts, IntArray, Times
from stepscope.memory.owners import KINDS
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace


@dataclass(frozen=True, eq=False)
class RecordedUsage:
    """The bytes that one device has in use over time.

    Attributes:
        before: bytes of each of `KINDS` before the first change, shape (kinds,). If the file does
            not state them: the least with which no kind falls below zero.
        time_ns: time of each change, in order, shape (n,).
        kind: position in `KINDS` of each change, shape (n,).
        change: bytes that it adds, negative for a release, shape (n,).
    """

    before: Counts
    time_ns: Times
    kind: Codes
    change: Counts

    @classmethod
    def of(cls, trace: Trace, device: str) -> RecordedUsage:
        """The changes of a device in the table `memory`."""
        table = trace["memory"]
        table = table.take(np.flatnonzero(table.text("device").mask(device)))
        kind, change = _kinds(table), table["bytes"].astype(np.int64)
        return cls(_before(table, kind, change), table["time_ns"], kind, change)

    def levels(self) -> Counts:
        """The bytes in use before the first change, and after each, shape (n + 1,)."""
        return int(self.before.sum()) + np.append(0, np.cumsum(self.change))

    def at(self, changes: int) -> Counts:
        """The bytes of each kind after that many changes, shape (kinds,)."""
        part = np.bincount(self.kind[:changes], self.change[:changes], len(KINDS))
        return self.before + part.astype(np.int64)


def _kinds(table: Table) -> Codes:
    category = table.text("category")
    unknown = KINDS.index("unknown")
    codes = [KINDS.index(name) if name in KINDS else unknown for name in category.values]
    found: Codes = np.array([*codes, unknown], np.int64)[category.codes]
    return found


def _before(table: Table, kind: Codes, change: Counts) -> Counts:
    before = np.array([_lowest(change[kind == one]) for one in range(len(KINDS))], np.int64)
    known = np.flatnonzero(table["allocated_bytes"] >= 0)
    if len(known):
        first = known[0]
        total = int(table["allocated_bytes"][first] - change[: first + 1].sum())
        before[KINDS.index("unknown")] += max(total - int(before.sum()), 0)
    return before


def _lowest(change: IntArray) -> int:
    """What must have been there for the sum never to fall below zero."""
    return -int(min(np.cumsum(change).min(initial=0), 0))
