"""Joins the traces of several ranks: rows are concatenated, references to rows renumbered.

The schema declares which columns refer to rows of which table (`Column.refers`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stepscope.arrays import Rows
from stepscope.trace.arguments import Arguments
from stepscope.trace.clock_mapping import clock_of
from stepscope.trace.intervals import Intervals
from stepscope.trace.row_order import inverse
from stepscope.trace.schema import SCHEMAS
from stepscope.trace.stack_tables import Offsets, stacked
from stepscope.trace.table import Table
from stepscope.trace.trace import Metadata, Trace


def concat(traces: Sequence[Trace], ahead_ns: Sequence[int] = ()) -> Trace:
    """Join traces of different ranks.

    Times are put on the common clock of the recordings (`Metadata.origin_ns`) if these overlap, as
    those of one job do; otherwise each begins at zero, with a warning.

    Args:
        traces: at least one; see `trace_rank.of_rank`.
        ahead_ns: how far the clock of each trace is ahead, ns; by default they agree.

    Returns:
        A trace whose events are in order of start; other tables are in order of rank.

    Example:
        >>> concat([rank0, rank1])["steps"]["rank"].tolist()  # doctest: +SKIP
        [0, 1]
    """
    if len(traces) == 1:
        return traces[0]
    shifts, warnings = _shifts(traces, ahead_ns or [0] * len(traces))
    offsets = _offsets(traces, shifts)
    tables = {name: stacked([trace[name] for trace in traces], offsets) for name in SCHEMAS}
    metadata = _merged(
        [trace.metadata for trace in traces], traces[0].metadata.origin_ns - shifts[0]
    )
    return Trace(in_order_of_start(tables), metadata, _arguments(traces, offsets)).with_warnings(
        warnings
    )


# -- time


def _shifts(
    traces: Sequence[Trace], ahead_ns: Sequence[int]
) -> tuple[list[int], list[tuple[str, str, int]]]:
    """What to add to the times of each trace, ns."""
    begins = np.array([clock_of(trace.metadata) for trace in traces]) - np.array(ahead_ns)
    together = Intervals(begins, begins + np.array([_length(trace) for trace in traces]) + 1)
    if len(together) == 1:
        return (begins - begins.min()).tolist(), []
    message = (
        "the ranks' recordings do not overlap in time: their clocks differ, or they are of "
        "different runs; each is shown from its own start, so times of different ranks cannot be "
        "compared"
    )
    return [0] * len(traces), [("clocks_apart", message, len(traces))]


def _length(trace: Trace) -> int:
    return int((trace.events["start_ns"] + trace.events["duration_ns"]).max(initial=0))


# -- rows


def _offsets(traces: Sequence[Trace], shifts: Sequence[int]) -> list[dict[str, int]]:
    """For each trace, the offset to add to a column, by what the column refers to."""
    before = dict.fromkeys(("file", *SCHEMAS), 0)
    result = []
    for trace, shift in zip(traces, shifts, strict=True):
        result.append({**before, "clock": shift})
        for name, table in trace.tables.items():
            before[name] += len(table)
        before["file"] += _positions(trace)
    return result


def _positions(trace: Trace) -> int:
    """The number of file positions that the trace refers to."""
    used = [trace[name]["source"].max(initial=-1) for name in ("events", "instants")]
    used += [block.sources[-1] for block in trace.arguments.blocks]
    return int(max(used)) + 1


def in_order_of_start(tables: dict[str, Table]) -> dict[str, Table]:
    """The tables with events in order of start (stable by rank) and references renumbered."""
    order = np.argsort(tables["events"]["start_ns"], kind="stable")
    place = np.append(inverse(order), -1)  # so that null, -1, stays null
    tables = {**tables, "events": tables["events"].take(order)}
    return {name: _renumbered(table, place) for name, table in tables.items()}


def _renumbered(table: Table, place: Rows) -> Table:
    references = [column.name for column in table.schema.columns if column.refers == "events"]
    return table.with_columns(**{name: place[table[name]] for name in references})


# -- the rest


def _arguments(traces: Sequence[Trace], offsets: Sequence[Offsets]) -> Arguments:
    return Arguments(
        tuple(
            block.shifted(offset["file"])
            for trace, offset in zip(traces, offsets, strict=True)
            for block in trace.arguments.blocks
        )
    )


def _merged(metadata: Sequence[Metadata], origin_ns: int) -> Metadata:
    """The common metadata; if values differ, the first trace's."""
    ranks = tuple(rank for part in metadata for rank in part.ranks)
    devices = {repr(sorted(device.items())): device for part in metadata for device in part.devices}
    return replace(
        metadata[0],
        ranks=ranks,
        world_size=max(len(ranks), *(part.world_size for part in metadata)),
        devices=tuple(devices.values()),
        origin_ns=origin_ns,
        tolerance_ns=max(part.tolerance_ns for part in metadata),
        properties=_common([part.properties for part in metadata]),
    )


def _common(properties: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first, *others = properties
    return {
        key: value
        for key, value in first.items()
        if all(key in other and other[key] == value for other in others)
    }
