"""Captures with allocations, drawn from a few readable lines."""

from __future__ import annotations

from typing import Any

import numpy as np

from stepscope.facts.annotate import annotate
from stepscope.testing import drawn_trace
from stepscope.trace.schema import MEMORY
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

STEP = """
    main |   0 200 | ProfilerStep#0
    main |   5   9 | enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__
    main |   6   8 | aten::stack
    main |  10  90 | ## forward ##
    main |  12  40 | stepscope.module: net.first
    main |  15  30 | aten::mm         | seq=1
    main |  42  80 | stepscope.module: net.second
    main |  45  60 | aten::exp        | seq=2
    main | 100 150 | ## backward ##
    main | 105 120 | ExpBackward0     | seq=2 fwd=1
    main | 125 140 | MmBackward0      | seq=1 fwd=1
    main | 160 190 | Optimizer.step#SGD.step
    main | 165 180 | aten::add_
"""


def with_allocations(
    drawing: str, text: str, rank: int = 0, addresses: bool = True, **metadata: Any
) -> Trace:
    """An annotated trace with allocations, each a line `device | begin end | bytes`, in us.

    `-` is a moment before, or after, the recording, or one that was not recorded. A fourth part is
    the number of the address, by default one of its own. Without `addresses`, as in traces of 2021.
    """
    trace = annotate(drawn_trace(drawing, ranks=(rank,), **metadata))
    rows = []
    for number, line in enumerate(filter(None, map(str.strip, text.splitlines()))):
        device, times, size, *place = (part.strip() for part in line.split("|"))
        begin, end = (None if one == "-" else float(one) for one in times.split())
        address = 512 * (int(place[0]) if place else number + 1) if addresses else -1
        rows += [] if begin is None else [(begin, device, address, int(size))]
        rows += [] if end is None else [(end, device, address, -int(size))]
    rows.sort(key=lambda row: (row[0], row[3]))
    time = np.array([row[0] * 1000 for row in rows], np.int64)
    columns = {
        "time_ns": time,
        "rank": np.full(len(rows), rank),
        "device": Text.of(row[1] for row in rows),
        "address": np.array([row[2] for row in rows]),
        "bytes": np.array([row[3] for row in rows]),
        "event": _innermost(trace, time),
    }
    return trace.with_table(Table(MEMORY, columns))


def _innermost(trace: Trace, time: np.ndarray) -> list[int]:
    """The event around each moment that begins last, -1 where there is none."""
    start = trace.events["start_ns"]
    end = start + trace.events["duration_ns"]
    around = [np.flatnonzero((start <= one) & (end > one)) for one in time.tolist()]
    return [int(rows[np.argmax(start[rows])]) if len(rows) else -1 for rows in around]
