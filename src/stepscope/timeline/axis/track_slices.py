"""The slices of one track within a tile: one by one if they are few, else binned to pixels.

A tile is a part of the axis: at zoom 0 all of it, at each further zoom half of the one before. An
exact tile holds each of its slices, so nothing finer needs to be asked for. Any other holds the
slices that are as long as a bin, and how much of each bin all slices cover, these included.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from stepscope.arrays import Codes8, Floats, Ids, Rows, Times
from stepscope.trace.intervals import Intervals

BINS = 1024
EXACT_SLICES = 3000
_FEW = 50_000  # slices that are faster looked at than searched by length


@dataclass(frozen=True)
class SortedSlices:
    """What a tile shows of a track; times are ns since the trace's start.

    Attributes:
        exact: whether `row` holds all slices of the tile.
        row: slices shown one by one, rows of the track's columns, shape (n,).
        depth: nesting depth of each, shape (n,).
        bin_depth: nesting depth of each bin that any slice covers, also one of `row`, shape (m,).
        bin: its number, 0 to `BINS` - 1, shape (m,).
        bin_row: a slice in it, whose color the bin takes, shape (m,).
        cover: how much of it is covered, 0 to 1, shape (m,).
    """

    exact: bool
    row: Ids
    depth: Ids
    bin_depth: Ids
    bin: Ids
    bin_row: Ids
    cover: Floats


class TrackSlices:
    """The slices of one track, found by time and by length.

    Args:
        start_ns: sorted ascending, int64, shape (slices,).
        duration_ns: int64, shape (slices,).
        depth: nesting depth, shape (slices,); slices of one depth rarely overlap.

    Attributes:
        depths: number of nesting depths.
    """

    def __init__(self, start_ns: Times, duration_ns: Times, depth: Codes8 | Ids) -> None:
        order = np.argsort(depth, kind="stable")
        self.depths = int(depth.max(initial=0)) + 1
        bounds = np.searchsorted(depth[order], np.arange(self.depths + 1))
        self._depths = [
            _Depth(order[first:end], start_ns[order[first:end]], duration_ns[order[first:end]])
            for first, end in pairwise(bounds.tolist())
        ]

    def tile(self, start: int, end: int) -> SortedSlices:
        """What the tile [start, end) shows.

        Args:
            start: ns since the trace's start.
            end: ns; the length should be a multiple of `BINS`.
        """
        counts = [depth.count(start, end) for depth in self._depths]
        exact = sum(counts) <= EXACT_SLICES
        shown = [(depth.within if exact else depth.long)(start, end) for depth in self._depths]
        binned = [_no_bins() if exact else depth.bins(start, end) for depth in self._depths]
        bins, rows, cover = (np.concatenate(part) for part in zip(*binned, strict=True))
        return SortedSlices(
            exact,
            np.concatenate(shown),
            _repeated([len(part) for part in shown]),
            _repeated([len(part) for part, _, _ in binned]),
            bins,
            rows,
            cover,
        )


class _Depth:
    """The slices of one nesting depth."""

    def __init__(self, rows: Rows, start: Times, duration: Times) -> None:
        self._rows, self._start, self._duration = rows, start, duration

    @cached_property
    def _reach(self) -> Times:
        """The latest end so far: ascending, even if slices overlap."""
        return np.maximum.accumulate(self._start + self._duration)

    @cached_property
    def _busy(self) -> Intervals:
        return Intervals(self._start, self._start + self._duration)

    @cached_property
    def _longest_first(self) -> tuple[Rows, Times]:
        order = np.argsort(-self._duration, kind="stable")
        return order, -self._duration[order]

    def _part(self, start: int, end: int) -> tuple[int, int]:
        first = int(np.searchsorted(self._reach, start, side="right"))
        return first, max(int(np.searchsorted(self._start, end)), first)

    def count(self, start: int, end: int) -> int:
        first, last = self._part(start, end)
        return last - first

    def within(self, start: int, end: int) -> Ids:
        """All slices that touch [start, end)."""
        first, last = self._part(start, end)
        touches = self._start[first:last] + np.maximum(self._duration[first:last], 1) > start
        return self._rows[first:last][touches]

    def long(self, start: int, end: int) -> Ids:
        """The slices that touch [start, end) and are as long as a bin."""
        least = (end - start) // BINS
        first, last = self._part(start, end)
        if last - first <= _FEW:
            candidates = np.arange(first, last)
        else:
            order, lengths = self._longest_first
            longer = order[: np.searchsorted(lengths, -least, side="right")]
            candidates = np.sort(longer[(longer >= first) & (longer < last)])
        begin, length = self._start[candidates], self._duration[candidates]
        return self._rows[candidates[(length >= least) & (begin + length > start)]]

    def bins(self, start: int, end: int) -> tuple[Ids, Ids, Floats]:
        """Number, a slice and the covered share of each bin that any slice covers."""
        edges = np.linspace(start, end, BINS + 1).astype(np.int64)
        covered = np.diff(self._busy.before(edges))
        found = np.flatnonzero(covered > 0)
        of = np.searchsorted(self._start, edges[found + 1]) - 1
        share = covered[found] / np.maximum(edges[found + 1] - edges[found], 1)
        return found, self._rows[of], share


def _no_bins() -> tuple[Ids, Ids, Floats]:
    none = np.zeros(0, np.int64)
    return none, none, np.zeros(0)


def _repeated(counts: list[int]) -> Ids:
    return np.repeat(np.arange(len(counts)), counts)
