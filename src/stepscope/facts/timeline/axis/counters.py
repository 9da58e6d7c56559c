"""The counters of a trace, such as the utilization of each device, in tiles of the axis.

A tile that is not exact has the least and the most of each bin, so that no peak is lost however
many changes a bin holds. A share of time, such as utilization, has its mean in each bin.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal

import msgspec
import numpy as np

from stepscope.base.arrays import Floats, IntArray, Rows, Times
from stepscope.trace.intervals import Intervals
from stepscope.trace.row_order import last_begun, rows_by_key
from stepscope.trace.sets import distinct_rows
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

BINS = 1024  # of a tile; about the pixels of its width
EXACT_CHANGES = 2000  # of a tile: up to about two for each of its bins all are sent
Unit = Literal["share", "bytes", ""]
BusyTime = Callable[[int, int], Intervals]
"""Busy time of the device of a rank, by rank and device."""
_INDEX = re.compile(r":(\d{1,9})$")


@dataclass(frozen=True)
class Runs:
    """What a tile shows: runs that each last until the next begins, the last until the tile's end."""

    exact: bool  # whether each run is one recorded value, and none is left out
    # since the trace's start, ascending, shape (n,); the first may begin before the tile, or after its
    # start if nothing is known before
    start_ns: Times
    least: Floats  # of the values in the run, shape (n,)
    most: Floats  # of the values in the run, shape (n,)


class CounterSummary(msgspec.Struct, frozen=True):
    """A counter in an area."""

    least: float | None  # null for a share of time
    mean: float  # over the part of the area in which a value is known, weighted by time
    most: float | None  # null for a share of time


class CounterValues:
    """The values of a counter, each of which holds until the next.

    Args:
        time_ns: since the trace's start, ascending, int64, shape (n,), n > 0.
        value: float64, shape (n,).
        is_share: whether it is a share of time, 0 or 1 at any moment, so that only means count.
    """

    def __init__(self, time_ns: Times, value: Floats, *, is_share: bool = False) -> None:
        self.time_ns, self.value, self.is_share = time_ns, value, is_share

    @property
    def range(self) -> tuple[float, float]:
        """The least and the most of all values."""
        return float(self.value.min()), float(self.value.max())

    def tile(self, start: int, end: int) -> Runs:
        """What the tile [start, end) shows, ns since the trace's start.

        Its length should be a multiple of `BINS`.
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
        return np.where(self.time_ns[np.minimum(at, len(self.time_ns) - 1)] == times, at, at - 1)

    def _extremes(self, first: IntArray, last: Rows) -> tuple[Floats, Floats]:
        low = max(int(first[0]), 0)
        values = np.append(self.value[low : int(last[-1])], 0)  # so that each bound is a position
        bounds = np.stack([np.maximum(first, 0), last], axis=1).ravel() - low
        return np.minimum.reduceat(values, bounds)[::2], np.maximum.reduceat(values, bounds)[::2]

    def _means(self, edges: Times) -> tuple[Floats, Floats]:
        means = np.diff(self.sums_until(edges)) / np.diff(edges)
        return means, means

    def sums_until(self, times: Times) -> Floats:
        """The sum of value times duration before each of some times, of their shape."""
        at = last_begun(self.time_ns, times)
        since = self.value[at] * (times - self.time_ns[at])
        return np.where(at >= 0, self._before[at] + since, 0)

    @cached_property
    def _before(self) -> Floats:
        """The sum of value times duration before each value, shape (n,)."""
        return np.append(0, np.cumsum(self.value[:-1] * np.diff(self.time_ns)))


@dataclass(frozen=True)
class Counter:
    """A value over time."""

    name: str  # what it is, with the device or the process it is of
    short: str  # the same without that
    rank: int  # of the process
    device: int  # number of the device, -1 for the CPU and where none is known
    unit: Unit  # `share` of time, `bytes`, or empty where the recorder names none
    read: Callable[[], CounterValues]  # returns its values; called once

    @cached_property
    def values(self) -> CounterValues:
        """Its values, read when first asked for."""
        return self.read()


def counters_of(trace: Trace, busy_time: BusyTime) -> list[Counter]:
    """The counters of a trace: rank by rank, device by device, the CPU and what was recorded last.

    `busy_time` says when a device of a rank computes or communicates.
    """
    found = [*_utilization(trace, busy_time), *_memory(trace), *_recorded(trace)]
    return sorted(found, key=lambda counter: (counter.rank, counter.device < 0, counter.device))


def _utilization(trace: Trace, busy_time: BusyTime) -> Iterator[Counter]:
    tracks = trace["tracks"]
    used = np.unique(trace.events["track"])
    pairs = zip(tracks["rank"][used].tolist(), tracks["device"][used].tolist(), strict=True)
    for rank, device in sorted({(rank, device) for rank, device in pairs if device >= 0}):
        read = partial(_busy_share, busy_time, rank, device)
        yield Counter(f"device {device} utilization", "utilization", rank, device, "share", read)


def _busy_share(busy_time: BusyTime, rank: int, device: int) -> CounterValues:
    """1 while a device is busy, 0 else."""
    busy = busy_time(rank, device)
    time = np.append(0, np.stack([busy.starts, busy.ends], axis=1).ravel())
    return CounterValues(time, np.append(0.0, np.tile([1.0, 0.0], len(busy))), is_share=True)


def _memory(trace: Trace) -> Iterator[Counter]:
    table = trace["memory"]
    devices = table.text("device")
    for rank in np.unique(table["rank"]).tolist():
        for device in sorted(devices.compact().values):
            rows = np.flatnonzero((table["rank"] == rank) & devices.mask(device))
            if len(rows):
                yield from _memory_of(table, rows, rank, device)


def _memory_of(table: Table, rows: Rows, rank: int, device: str) -> Iterator[Counter]:
    number = int(found[1]) if (found := _INDEX.search(device)) else -1
    known = rows[table["allocated_bytes"][rows] >= 0]
    short = "allocated" if len(known) else "allocated since start"
    read = partial(_allocated, table, known) if len(known) else partial(_net_allocated, table, rows)
    yield Counter(f"{device} memory {short}", short, rank, number, "bytes", read)
    held = rows[table["reserved_bytes"][rows] > 0]
    if len(held):
        read = partial(_values, table, held, "reserved_bytes")
        yield Counter(f"{device} memory reserved", "reserved", rank, number, "bytes", read)


def _allocated(table: Table, rows: Rows) -> CounterValues:
    """What is allocated after each change, and before the first of them."""
    values = _values(table, rows, "allocated_bytes")
    before = values.value[0] - float(table["bytes"][rows[0]])
    return CounterValues(np.append(0, values.time_ns), np.append(before, values.value))


def _net_allocated(table: Table, rows: Rows) -> CounterValues:
    """What was allocated since the recording began, less what was released; may be negative."""
    total = np.cumsum(table["bytes"][rows]).astype(np.float64)
    return CounterValues(np.append(0, table["time_ns"][rows]), np.append(0.0, total))


def _values(table: Table, rows: Rows, column: str) -> CounterValues:
    return CounterValues(table["time_ns"][rows], table[column][rows].astype(np.float64))


def _recorded(trace: Trace) -> Iterator[Counter]:
    """A counter for each name and series of a process.

    Source: the Trace Event Format (Google, 2016), section on counter events.
    """
    table, tracks = trace["counters"], trace["tracks"]
    track = table["track"]
    texts = tracks.text("process").take(track), table.text("name"), table.text("series")
    _, group = distinct_rows(tracks["rank"][track], *(text.codes for text in texts))
    rows = np.flatnonzero(np.isfinite(table["value"]))
    rows = rows[np.argsort(table["time_ns"][rows], kind="stable")]
    for part in rows_by_key(group, rows).values():
        process, name, series = (text[int(part[0])] or "" for text in texts)
        short = name if series in ("", "value", name) else f"{name} {series}"
        at = int(track[part[0]])
        long = f"{short}, process {process}" if process else short
        rank, device = int(tracks["rank"][at]), int(tracks["device"][at])
        yield Counter(long, short, rank, device, "", partial(_values, table, part, "value"))
