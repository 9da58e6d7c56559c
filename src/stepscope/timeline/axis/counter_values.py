"""A value that changes over time: tiles of several levels of detail, and statistics of an area.

A tile that is not exact has the least and the most of each bin, so that no peak is lost however
many changes a bin holds. A share of time, such as utilization, has its mean in each bin.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.arrays import Floats, IntArray, Rows, Times
from stepscope.timeline.axis.track_slices import BINS

EXACT_CHANGES = 2000


@dataclass(frozen=True)
class Runs:
    """What a tile shows: runs that each last until the next begins, the last until the tile's end.

    Attributes:
        exact: whether each run is one recorded value, and none is left out.
        start_ns: since the trace's start, ascending, shape (n,); the first may begin before the
            tile, or after its start if nothing is known before.
        least, most: of the values in the run, shape (n,).
    """

    exact: bool
    start_ns: Times
    least: Floats
    most: Floats


@dataclass(frozen=True)
class CounterSummary:
    """A counter in an area.

    Attributes:
        least, most: None for a share of time.
        mean: over the part of the area in which a value is known, weighted by time.
    """

    least: float | None
    mean: float
    most: float | None


class CounterValues:
    """The values of a counter, each of which holds until the next.

    Args:
        time_ns: since the trace's start, ascending, int64, shape (n,), n > 0.
        value: float64, shape (n,).
        is_share: whether it is a share of time, 0 or 1 at any moment, so that only means count.

    Example:
        >>> CounterValues(np.array([0, 10]), np.array([4.0, 8.0])).statistics(5, 20)
        CounterSummary(least=4.0, mean=6.666666666666667, most=8.0)
    """

    def __init__(self, time_ns: Times, value: Floats, *, is_share: bool = False) -> None:
        self.time_ns, self.value, self.is_share = time_ns, value, is_share

    @property
    def range(self) -> tuple[float, float]:
        """The least and the most of all values."""
        return float(self.value.min()), float(self.value.max())

    def tile(self, start: int, end: int) -> Runs:
        """What the tile [start, end) shows.

        Args:
            start: ns since the trace's start.
            end: ns; the length should be a multiple of `BINS`.
        """
        rows = self._rows(start, end)
        if len(self.value[rows]) <= EXACT_CHANGES:
            return Runs(True, self.time_ns[rows], self.value[rows], self.value[rows])
        edges = np.linspace(start, end, BINS + 1).astype(np.int64)
        first, last = self._first(edges[:-1]), np.searchsorted(self.time_ns, edges[1:])
        least, most = self._means(edges) if self.is_share else self._extremes(first, last)
        # Nothing is known of a bin before the first value; a run goes on where nothing changes.
        known = last > 0
        same = (least[1:] == least[:-1]) & (most[1:] == most[:-1]) & known[:-1]
        shown = known & ~np.append(False, same)
        return Runs(False, edges[:-1][shown], least[shown], most[shown])

    def statistics(self, start: int, end: int) -> CounterSummary | None:
        """Least, mean and most in [start, end); None where no value is known."""
        rows = self._rows(start, end)
        time, value = self.time_ns[rows], self.value[rows]
        if not len(value):
            return None
        held = np.diff(np.append(np.maximum(time, start), end))
        mean = float((value * held).sum() / held.sum())
        if self.is_share:
            return CounterSummary(None, mean, None)
        return CounterSummary(float(value.min()), mean, float(value.max()))

    def _rows(self, start: int, end: int) -> slice:
        """The values that hold at some moment of [start, end)."""
        first = int(self._first(np.array([start]))[0])
        return slice(max(first, 0), int(np.searchsorted(self.time_ns, end)))

    def _first(self, times: Times) -> IntArray:
        """The value that holds at each of some times, -1 before the first; the first if several."""
        at = np.searchsorted(self.time_ns, times)
        begins = self.time_ns[np.minimum(at, len(self.time_ns) - 1)] == times
        return np.where(begins, at, at - 1)

    def _extremes(self, first: IntArray, last: Rows) -> tuple[Floats, Floats]:
        """The least and the most of the values in each [first, last), shapes (bins,)."""
        low = max(int(first[0]), 0)
        values = np.append(self.value[low : int(last[-1])], 0)  # so that each bound is a position
        bounds = np.stack([np.maximum(first, 0), last], axis=1).ravel() - low
        least = np.minimum.reduceat(values, bounds)[::2]
        return least, np.maximum.reduceat(values, bounds)[::2]

    def _means(self, edges: Times) -> tuple[Floats, Floats]:
        at = np.searchsorted(self.time_ns, edges, side="right") - 1
        since = self.value[at] * (edges - self.time_ns[at])
        means = np.diff(np.where(at >= 0, self._before[at] + since, 0)) / np.diff(edges)
        return means, means

    @cached_property
    def _before(self) -> Floats:
        """The sum of value times duration before each value, shape (n,)."""
        return np.append(0, np.cumsum(self.value[:-1] * np.diff(self.time_ns)))
