"""Move times from one clock to another."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stepscope.arrays import Times
from stepscope.trace.table import Table
from stepscope.trace.trace import Metadata


def clock_of(metadata: Metadata) -> int:
    """The common clock at a trace's zero; recent Kineto files count from their own base time."""
    base = metadata.properties.get("baseTimeNanoseconds", 0)
    return metadata.origin_ns + (base if isinstance(base, int) and abs(base) < 2**61 else 0)


def with_times(table: Table, moved: Callable[[Times], Times]) -> Table:
    """A table with all its times on another clock; null stays null.

    Args:
        table: of any schema; `Column.refers` says which columns are times.
        moved: from times on the old clock to times on the new one, ns.
    """
    columns = {}
    for column in table.schema.columns:
        if column.refers == "clock":
            times = table[column.name]
            missing = column.nullable & (times < 0)
            columns[column.name] = np.where(missing, times, moved(times))
    return table.with_columns(**columns) if columns else table
