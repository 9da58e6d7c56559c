"""The work of a trace as a table of it: a derived fact, added beside the others."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.roofline.pieces import work_of_pieces
from stepscope.roofline.precision import PRECISIONS, precisions
from stepscope.trace.schema import OPERATIONS
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace


def with_operations(trace: Trace) -> Trace:
    """A trace like this one with the table `operations` filled, for all ranks and steps."""
    events = trace.events
    rows = np.flatnonzero(events["kind"] >= 0)
    on_device = (trace["tracks"]["device"] >= 0)[events["track"][rows]]
    time = np.where(on_device, events["duration_ns"][rows], events["self_ns"][rows])
    pieces = work_of_pieces(trace, rows, time)
    precision = precisions(events.text("name").take(rows), pieces.width)
    codes = np.where(pieces.products & precision.mask(*PRECISIONS), precision.codes, -1)
    return trace.with_table(
        Table(
            OPERATIONS,
            {
                "event": rows,
                "flops": _whole(np.where(pieces.products, pieces.flops, np.nan)),
                "bytes": _whole(pieces.bytes),
                "precision": Text(codes, PRECISIONS),
            },
        )
    )


def _whole(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Rounded, -1 where not known."""
    return np.where(np.isnan(values), -1, np.rint(values)).astype(np.int64)
