"""The counters of a trace: utilization of each device, its memory, and what was recorded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal

import numpy as np

from stepscope.arrays import Rows
from stepscope.timeline.axis.counter_values import CounterValues
from stepscope.trace.intervals import Intervals
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

Unit = Literal["share", "bytes", ""]
BusyTime = Callable[[int, int], Intervals]
"""Busy time of the device of a rank, by rank and device."""
_INDEX = re.compile(r":(\d+)$")


@dataclass(frozen=True)
class Counter:
    """A value over time.

    Attributes:
        name: what it is, with the device or the process it is of.
        short: the same without that.
        rank: of the process.
        device: number of the device, -1 for the CPU and where none is known.
        unit: `share` of time, `bytes`, or empty where the recorder names none.
        read: returns its values; called once.
    """

    name: str
    short: str
    rank: int
    device: int
    unit: Unit
    read: Callable[[], CounterValues]

    @cached_property
    def values(self) -> CounterValues:
        """Its values, read when first asked for."""
        return self.read()


def counters_of(trace: Trace, busy_time: BusyTime) -> list[Counter]:
    """The counters of a trace: rank by rank, device by device, the CPU and what was recorded last.

    Args:
        trace: an annotated trace.
        busy_time: when a device of a rank computes or communicates.
    """
    found = [*_utilization(trace, busy_time), *_memory(trace), *_recorded(trace)]
    return sorted(found, key=lambda one: (one.rank, one.device < 0, one.device))


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
    value = np.append(0.0, np.tile([1.0, 0.0], len(busy)))
    return CounterValues(time, value, is_share=True)


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
    keys = np.stack([tracks["rank"][track], *(text.codes for text in texts)])
    rows = np.flatnonzero(np.isfinite(table["value"]))
    _, group = np.unique(keys[:, rows], axis=1, return_inverse=True)
    order = np.lexsort((table["time_ns"][rows], group.ravel()))
    bounds = np.flatnonzero(np.diff(group.ravel()[order])) + 1
    for part in np.split(rows[order], bounds) if len(rows) else []:
        process, name, series = (text[int(part[0])] or "" for text in texts)
        short = name if series in ("", "value", name) else f"{name} {series}"
        at = int(track[part[0]])
        yield Counter(
            f"{short}, process {process}" if process else short, short,
            int(tracks["rank"][at]), int(tracks["device"][at]), "",
            partial(_values, table, part, "value"),
        )  # fmt: skip
