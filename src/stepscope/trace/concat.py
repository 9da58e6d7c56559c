"""Joins the traces of several ranks, and takes such a trace apart again."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stepscope.base.arrays import Array, Ids32, IntArray, Mask
from stepscope.trace.arguments import Arguments
from stepscope.trace.declaration import Column
from stepscope.trace.intervals import Intervals
from stepscope.trace.row_order import inverse
from stepscope.trace.schema import SCHEMAS
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Metadata, Trace, clock_of

Offsets = Mapping[str, int]  # what to add to a column, by what it refers to (`Column.refers`)


def stacked(tables: Sequence[Table], offsets: Sequence[Offsets] = ()) -> Table:
    """One table with the rows of all tables, in order; `offsets` of each are added to its columns."""
    schema, shifts = tables[0].schema, offsets or [{}] * len(tables)
    columns: dict[str, Any] = {}
    for column in schema.columns:
        if column.kind == "text" and not column.values:
            columns[column.name] = joined_text([table.text(column.name) for table in tables])
        elif column.name != "id":
            parts = [
                _moved(table[column.name], column, shift.get(column.refers, 0))
                for table, shift in zip(tables, shifts, strict=True)
            ]
            values = np.concatenate(parts)
            columns[column.name] = Text(values, column.values) if column.values else values
    return Table(schema, columns)


def _moved(values: Array, column: Column, offset: int) -> Array:
    if not offset:
        return values
    return np.where(values < 0, values, values + offset) if column.nullable else values + offset


def joined_text(parts: Sequence[Text]) -> Text:
    """Several text columns, concatenated over one list of values."""
    index: dict[str, int] = {}
    codes = []
    for part in parts:
        numbers = [index.setdefault(value, len(index)) for value in part.values]
        codes.append(np.array([*numbers, -1], np.int32)[part.codes])
    small = np.int8 if len(index) < 128 else np.int32
    return Text(np.concatenate(codes).astype(small), list(index))


def concat(traces: Sequence[Trace], ahead_ns: Sequence[int] = ()) -> Trace:
    """Join traces of different ranks.

    Times are put on the common clock of the recordings (`Metadata.origin_ns`) if these overlap, as
    those of one job do; otherwise each begins at zero, with a warning. Events are in order of start,
    other tables in order of rank.

    The clock of each trace is ahead by `ahead_ns`; by default they agree.
    """
    if len(traces) == 1:
        return traces[0]
    shifts, warnings = _shifts(traces, ahead_ns or [0] * len(traces))
    offsets = _offsets(traces, shifts)
    tables = {name: stacked([trace[name] for trace in traces], offsets) for name in SCHEMAS}
    metadata = _merged([trace.metadata for trace in traces], traces[0].metadata.origin_ns - shifts[0])
    pairs = zip(traces, offsets, strict=True)
    blocks = (block.shifted(by["file"]) for trace, by in pairs for block in trace.arguments.blocks)
    return Trace(in_order_of_start(tables), metadata, Arguments(tuple(blocks))).with_warnings(warnings)


# -- time


def _shifts(traces: Sequence[Trace], ahead_ns: Sequence[int]) -> tuple[list[int], list[tuple[str, str, int]]]:
    begins = np.array([clock_of(trace.metadata) for trace in traces]) - np.array(ahead_ns)
    ends = [(trace.events["start_ns"] + trace.events["duration_ns"]).max(initial=0) for trace in traces]
    together = Intervals(begins, begins + np.array(ends) + 1)
    if len(together) == 1:
        return (begins - begins.min()).tolist(), []
    message = (
        "the ranks' recordings do not overlap in time: their clocks differ, or they are of different runs; "
        "each is shown from its own start, so times of different ranks cannot be compared"
    )
    return [0] * len(traces), [("clocks_apart", message, len(traces))]


# -- rows


def _offsets(traces: Sequence[Trace], shifts: Sequence[int]) -> list[dict[str, int]]:
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
    return {name: _with_events(table, place) for name, table in tables.items()}


def _with_events(table: Table, place: IntArray) -> Table:
    """A table with new numbers of events."""
    references = [column.name for column in table.schema.columns if column.refers == "events"]
    return table.with_columns(**{name: place[table[name]] for name in references}) if references else table


# -- the rest


def _merged(metadata: Sequence[Metadata], origin_ns: int) -> Metadata:
    """The common metadata; if values differ, the first trace's."""
    ranks = tuple(rank for part in metadata for rank in part.ranks)
    devices = {repr(sorted(device.items())): device for part in metadata for device in part.devices}
    return replace(
        metadata[0],
        captures={str(rank): part.capture_of(rank) for part in metadata for rank in part.ranks},
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


def split(trace: Trace, part: IntArray) -> list[Trace]:
    """Split a trace that a reader built, before annotation.

    Times and positions in the file are unchanged. The first part gets the warnings and the memory
    rows outside all events. `part` is that of each track, from 0 on.
    """
    return [_part(trace, part, number) for number in range(int(part.max(initial=0)) + 1)]


def _part(trace: Trace, part: IntArray, number: int) -> Trace:
    tracks, events = np.flatnonzero(part == number), trace.events
    rows = np.flatnonzero(part[events["track"]] == number)
    track, event = _new_ids(tracks, len(part)), _new_ids(rows, len(events))
    of_event = np.append(part[events["track"]], 0)  # the first part gets rows outside all events
    flows, memory = trace["flows"], trace["memory"]
    source, target = (event[flows[end]] for end in ("source_event", "target_event"))
    kept = (source >= 0) | (target >= 0)
    memory = memory.take(of_event[memory["event"]] == number)
    tables = {
        "events": _renumbered(events.take(rows), track).with_columns(parent=event[events["parent"][rows]]),
        "tracks": trace["tracks"].take(tracks),
        "flows": flows.take(kept).with_columns(source_event=source[kept], target_event=target[kept]),
        "memory": memory.with_columns(event=event[memory["event"]]),
        **{
            name: _renumbered(trace[name].take(part[trace[name]["track"]] == number), track)
            for name in ("instants", "counters")
        },
        **({} if number else {"warnings": trace["warnings"]}),
    }
    return Trace(tables, trace.metadata, _arguments_of(trace, events["source"][rows]))


def _new_ids(rows: IntArray, length: int) -> Ids32:
    """The new id for each old id, -1 for rows left out; -1 stays -1."""
    return inverse(rows, length + 1).astype(np.int32)


def _renumbered(table: Table, track: IntArray) -> Table:
    return table.with_columns(track=track[table["track"]])


def _arguments_of(trace: Trace, sources: IntArray) -> Arguments:
    """The blocks that hold arguments of these events."""
    first, last = (int(sources.min()), int(sources.max())) if len(sources) else (0, -1)
    blocks = trace.arguments.blocks
    return Arguments(tuple(b for b in blocks if b.sources[0] <= last and b.sources[-1] >= first))


def one_rank(trace: Trace, rank: int) -> Trace:
    """What an annotated trace of several ranks holds of one of them, on the common clock.

    Tables of tracks and modules stay whole, so that their ids keep their meaning; events are renumbered.
    """
    if trace.metadata.ranks == (rank,):
        return trace
    tracks = trace["tracks"]["rank"] == rank
    kept = tracks[trace.events["track"]]
    number = _new_ids(np.flatnonzero(kept), len(kept))
    tables = {
        name: _of_rank(table, rank, tracks, number)
        for name, table in trace.tables.items()
        if name not in ("tracks", "modules")
    }
    metadata = replace(trace.metadata, ranks=(rank,), capture=trace.metadata.capture_of(rank))
    return Trace({**trace.tables, **tables}, metadata, trace.arguments)


def _of_rank(table: Table, rank: int, tracks: Mask, number: Ids32) -> Table:
    kept = np.ones(len(table), np.bool_)
    if "rank" in table.columns():
        kept = table["rank"] == rank
    elif "track" in table.columns():
        kept = tracks[table["track"]]
    else:
        for column in table.schema.columns:
            if column.refers == "events":
                kept &= (number[table[column.name]] >= 0) | (table[column.name] < 0)
    return _with_events(table.take(kept), number)


def of_rank(trace: Trace, rank: int) -> Trace:
    """The trace of one process with its rank set in the metadata and in every `rank` column."""
    for table in trace.tables.values():
        if "rank" in table.columns() and len(table):
            trace = trace.with_table(table.with_columns(rank=np.full(len(table), rank, np.int32)))
    return trace.with_metadata(ranks=(rank,))
