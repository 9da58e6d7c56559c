"""One rank of a trace of several; the inverse of `concat`."""

from __future__ import annotations

import numpy as np

from stepscope.arrays import Ids32, Mask
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace


def one_rank(trace: Trace, rank: int) -> Trace:
    """What a trace of several ranks holds of one of them, on the common clock.

    Tables of tracks and modules stay whole, so that their ids keep their meaning; events are
    numbered anew.

    Args:
        trace: an annotated trace.
        rank: one of its ranks.
    """
    if trace.metadata.ranks == (rank,):
        return trace
    tracks = trace["tracks"]["rank"] == rank
    kept = tracks[trace.events["track"]]
    number = np.full(len(kept) + 1, -1, np.int32)  # -1 stays -1
    number[:-1][kept] = np.arange(kept.sum())
    tables = {
        name: _of_rank(table, rank, tracks, number)
        for name, table in trace.tables.items()
        if name not in ("tracks", "modules")
    }
    return Trace(
        {**trace.tables, **tables}, trace.metadata, trace.arguments
    ).with_metadata(ranks=(rank,))  # fmt: skip


def _of_rank(table: Table, rank: int, tracks: Mask, number: Ids32) -> Table:
    """The rows of a rank, with its new numbers of events."""
    columns = table.schema.columns
    events = [column.name for column in columns if column.refers == "events"]
    kept = np.ones(len(table), np.bool_)
    if "rank" in table.columns():
        kept = table["rank"] == rank
    elif "track" in table.columns():
        kept = tracks[table["track"]]
    else:
        for name in events:
            kept &= (number[table[name]] >= 0) | (table[name] < 0)
    part = table.take(kept)
    return part.with_columns(**{name: number[part[name]] for name in events}) if events else part
