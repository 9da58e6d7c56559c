"""The table `operations` of a trace: the work of its kernels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.arrays import Floats
from stepscope.roofline.precision import PRECISIONS, precisions
from stepscope.roofline.work_pieces import work_of_pieces
from stepscope.trace.schema import OPERATIONS
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace


def with_operations(trace: Trace) -> Trace:
    """The trace with the table `operations` filled, for all ranks and steps."""
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


def _whole(values: Floats) -> NDArray[np.int64]:
    """Rounded, -1 if unknown."""
    return np.where(np.isnan(values), -1, np.rint(values)).astype(np.int64)
