"""Sets the rank of a trace."""

from __future__ import annotations

import numpy as np

from stepscope.trace.trace import Trace


def of_rank(trace: Trace, rank: int) -> Trace:
    """The trace of one process with its rank set in the metadata and in every `rank` column.

    Args:
        trace: the trace of one process.
        rank: its rank in the distributed job.

    Returns:
        The trace with every `rank` column set.
    """
    for table in trace.tables.values():
        if "rank" in table.columns() and len(table):
            trace = trace.with_table(table.with_columns(rank=np.full(len(table), rank, np.int32)))
    return trace.with_metadata(ranks=(rank,))
