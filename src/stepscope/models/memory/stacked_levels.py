"""Memory over time: every change of a device's memory, and stacked areas at any level of detail.

A tile shows every change, or a column for each of `BINS` equal parts of its time. A column shows
all groups at one moment, that of the part's maximum, so that areas stack and no peak is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.base.arrays import Codes, Counts, Ids, Ids32, Rows, Times
from stepscope.models.memory.lifetimes import Lifetimes, bytes_before
from stepscope.models.memory.owners import KINDS
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

BINS = 512  # columns of a tile
_EXACT_CHANGES = 2 * BINS  # changes of a tile that are shown one by one
_CHECKPOINT = 1 << 16  # changes between two stored states
_MOST_GROUPS = 12  # shown; the rest is one group
OTHERS = "everything else"


@dataclass(frozen=True, eq=False)
class MemoryChanges:
    """The changes of one device."""

    # bytes of each owner before the first change, shape (owners,). An owner is an allocation; a kind,
    # where it is unknown which release ends which allocation.
    before: Counts
    time_ns: Times  # when, ascending, shape (n,)
    change: Counts  # bytes, negative for a release, shape (n,)
    owner: Ids32  # whose, shape (n,)

    @classmethod
    def of_lifetimes(cls, life: Lifetimes) -> MemoryChanges:
        """Allocations and releases; at one moment releases come first, as in the allocator."""
        time, owner, begins = life.moments()
        change = np.where(begins, life.bytes[owner], -life.bytes[owner])
        before = np.where(np.isneginf(life.start), life.bytes, 0)
        return cls(before, time.astype(np.int64), change, owner.astype(np.int32))

    @classmethod
    def of_kinds(cls, trace: Trace, device: str) -> MemoryChanges:
        """The changes of a device that were recorded without addresses; owners are `KINDS`.

        Where the file does not state what was there before: the least with which no kind falls
        below zero.
        """
        table = trace["memory"]
        table = table.take(np.flatnonzero(table.text("device").mask(device)))
        kind, change = _kinds(table), table["bytes"].astype(np.int64)
        before = _held_before(table, kind, change)
        return cls(before, table["time_ns"], change, kind.astype(np.int32))

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


def _kinds(table: Table) -> Codes:
    category = table.text("category")
    unknown = KINDS.index("unknown")
    codes = [KINDS.index(name) if name in KINDS else unknown for name in category.values]
    return np.array([*codes, unknown], np.int64)[category.codes]


def _held_before(table: Table, kind: Codes, change: Counts) -> Counts:
    lowest = [np.cumsum(change[kind == code]).min(initial=0) for code in range(len(KINDS))]
    before = -np.minimum(np.array(lowest, np.int64), 0)
    before[KINDS.index("unknown")] += max(bytes_before(table) - int(before.sum()), 0)
    return before


@dataclass(frozen=True)
class Columns:
    """What a tile shows: columns that each last until the next begins."""

    exact: bool  # whether each column is one moment and no change is left out
    start_ns: Times  # ascending, shape (n,)
    least: Counts  # the least bytes in use within each column, shape (n,)
    held: Counts  # bytes of each group when most is in use, shape (groups, n)


class StackedLevels:
    """The bytes of groups of owners over time.

    Args:
        code: position in `names` of each owner, -1 for none, shape (owners,).
        in_order: show all groups that have an owner, in the order of `names`. By default those
            that hold most at the peak are shown, the largest first, and the rest is one group.

    Attributes:
        names: of the groups that are shown; empty for owners without one.
        codes: the position of each of them in the names given, -1 for none, -2 for the rest.
    """

    def __init__(
        self, changes: MemoryChanges, code: Codes | Ids, names: Sequence[str], in_order: bool = False
    ) -> None:
        self._changes = changes
        self.codes = _used(changes, code) if in_order else _largest(changes, code, len(names))
        shown = np.full(len(names) + 1, len(self.codes) - 1, np.int8)
        for place, group in enumerate(self.codes):
            if group >= -1:
                shown[group] = place
        self.names = [OTHERS if group == -2 else names[group] if group >= 0 else "" for group in self.codes]
        of_owner = shown[code]
        self._group = of_owner[changes.owner]
        self._before = _sums(of_owner, changes.before, len(self.names))
        number, groups = np.arange(len(self._group)) // _CHECKPOINT, len(self.names)
        steps = len(self._group) // _CHECKPOINT + 1
        added = _sums(number * groups + self._group, changes.change, steps * groups).reshape(steps, groups)
        self._checkpoints = self._before + np.cumsum(added, axis=0) - added

    def tile(self, start_ns: int, end_ns: int) -> Columns:
        """What happens in [start_ns, end_ns)."""
        time = self._changes.time_ns
        first, last = np.searchsorted(time, [start_ns, end_ns])
        if last - first <= _EXACT_CHANGES:
            return self._each_change(start_ns, int(first), int(last))
        edges = np.linspace(start_ns, end_ns, BINS + 1).astype(np.int64)
        states = np.searchsorted(time, edges)
        states[0], states[-1] = first, last
        levels = self._changes.levels
        # The value at a column's start holds in it, so columns share the state at their edge.
        bounds = np.stack([states[:-1], states[1:] + 1], axis=1).ravel()
        padded = np.append(levels[: int(last) + 1], 0)
        most = np.maximum.reduceat(padded, bounds)[::2]
        least = np.minimum.reduceat(padded, bounds)[::2]
        moments = _first_with(levels, states, most)
        return Columns(False, edges[:-1], least, self.held_after(moments).T)

    def held_after(self, counts: Rows) -> Counts:
        """The bytes of each group after so many changes, ascending; shape (counts, groups)."""
        if not len(counts):
            return np.zeros((0, len(self.names)), np.int64)
        first = int(counts[0])
        upto = slice(first, int(counts[-1]))
        # A change counts for the first moment that comes after it, and for all later ones.
        column = np.repeat(np.arange(len(counts)), np.diff(counts, prepend=first))
        key = column * len(self.names) + self._group[upto]
        added = _sums(key, self._changes.change[upto], len(counts) * len(self.names))
        added = added.reshape(len(counts), len(self.names))
        near = first // _CHECKPOINT
        rest = slice(near * _CHECKPOINT, first)
        added[0] += self._checkpoints[near]
        added[0] += _sums(self._group[rest], self._changes.change[rest], len(self.names))
        return np.cumsum(added, axis=0)

    def _each_change(self, start_ns: int, first: int, last: int) -> Columns:
        """Each moment with changes; what holds before is a column from the tile's start on."""
        time = self._changes.time_ns[first:last]
        ends = np.flatnonzero(np.append(np.diff(time) != 0, True)[: len(time)])
        counts = np.append(first, first + ends + 1)
        held = self.held_after(counts)
        start = np.append(start_ns, time[ends])
        return Columns(True, start, self._changes.levels[counts], held.T)


def _used(changes: MemoryChanges, code: Codes | Ids) -> list[int]:
    """The groups with an owner that holds something at some moment, ascending."""
    return np.union1d(code[changes.owner], code[changes.before > 0]).tolist()


def _largest(changes: MemoryChanges, code: Codes | Ids, names: int) -> list[int]:
    """The groups that hold most at the peak; -1 is that of no name, -2 the rest."""
    held = np.bincount(code[changes.owner[: changes.peak]] + 1, changes.change[: changes.peak], names + 1)
    held += np.bincount(code + 1, changes.before, names + 1)
    used = np.array(_used(changes, code), np.int64)
    order = used[np.argsort(-held[used + 1], kind="stable")]
    return [*order[:_MOST_GROUPS].tolist(), *([-2] if len(order) > _MOST_GROUPS else [])]


def _first_with(levels: Counts, states: Rows, most: Counts) -> Rows:
    """For each column the first number of changes after which it holds its maximum."""
    first, last = int(states[0]), int(states[-1])
    counts = np.diff(states)
    hits = np.flatnonzero(levels[first + 1 : last + 1] == np.repeat(most, counts)) + first + 1
    place = np.minimum(np.searchsorted(hits, states[:-1], side="right"), max(len(hits) - 1, 0))
    inside = hits[place] if len(hits) else states[:-1]
    return np.where(levels[states[:-1]] == most, states[:-1], inside)


def _sums(key: Codes | Ids | np.ndarray, value: Counts, groups: int) -> Counts:
    """Whole bytes of each group; a float counts exactly up to 9 PB."""
    return np.bincount(key, value, groups).astype(np.int64)
