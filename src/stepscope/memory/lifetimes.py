"""Allocations as rows with a beginning and an end, and the peak that they add up to."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from stepscope.arrays import Counts, Floats, Ids, Mask


@dataclass(frozen=True, eq=False)
class Lifetimes:
    """Allocations of one device; every array has shape (n,).

    Attributes:
        bytes: size.
        start, end: ns; -inf before the recording, inf if alive at its end.
        kind: position in `KINDS`.
        recorded: number of the recorded allocation that it is, or of which it is a copy; -1 for
            one that a change adds.
    """

    bytes: Counts
    start: Floats
    end: Floats
    kind: Ids
    recorded: Ids

    def __len__(self) -> int:
        return len(self.bytes)

    def take(self, rows: Any) -> Lifetimes:
        """Some of the rows."""
        return Lifetimes(**{one.name: getattr(self, one.name)[rows] for one in fields(self)})

    def plus(self, other: Lifetimes) -> Lifetimes:
        """All rows of both."""
        return Lifetimes(**{
            one.name: np.concatenate([getattr(self, one.name), getattr(other, one.name)])
            for one in fields(self)
        })  # fmt: skip

    def changed(self, **columns: Any) -> Lifetimes:
        """The same rows with other columns."""
        return replace(self, **columns)

    def over_time(self) -> tuple[Floats, Counts]:
        """The bytes in use after each change: times and bytes, the first before any change.

        Releases come first at one moment, as memory is given back before it is taken again.
        """
        begins = np.flatnonzero(np.isfinite(self.start))
        ends = np.flatnonzero(np.isfinite(self.end))
        times = np.concatenate([self.start[begins], self.end[ends]])
        changes = np.concatenate([self.bytes[begins], -self.bytes[ends]])
        order = np.lexsort((changes, times))
        before = int(self.bytes[np.isneginf(self.start)].sum())
        level = before + np.concatenate([[0], np.cumsum(changes[order])]).astype(np.int64)
        return np.concatenate([[-np.inf], times[order]]), level

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
        result: Mask = (self.start <= time) & (self.end > time)
        return result
