"""Builds a trace from a reader's columns: sorts and nests events, ties arrows, rebases times."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.base.arrays import Array, Ids32, Mask, Rows, Times
from stepscope.trace.arguments import Arguments
from stepscope.trace.nesting import enclosing, last_started, parents, self_times
from stepscope.trace.row_order import places_among, start_order
from stepscope.trace.schema import COUNTERS, EVENTS, FLOWS, INSTANTS, MEMORY, TRACKS
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Metadata, Trace, WarningRow

MICROSECOND = 1000  # ns
_SAMPLE = 1 << 10  # events, looked at first: they mostly tell, without a pass over all
_FINE_TOLERANCE_NS = 2  # recorders that write ns as decimal µs are off by a float's rounding


@dataclass
class Arrows:
    """The ends of flow arrows before matching: each is a tail or a head at a time on a track."""

    kind: Text
    identity: NDArray[np.int64]
    is_head: Mask
    time_ns: Times
    track: Ids32


@dataclass
class Parts:
    """The output of a reader: columns of tables; times are absolute ns on the recorder's clock."""

    events: dict[str, Any]  # at least name, category, track, start_ns, duration_ns
    tracks: dict[str, Any]
    arrows: Arrows | None = None
    instants: dict[str, Any] = field(default_factory=dict)
    counters: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)
    metadata: Metadata = field(default_factory=Metadata)
    arguments: Arguments = field(default_factory=Arguments)  # by `events.source`
    warnings: Iterable[WarningRow] = ()
    tables: Mapping[str, Table] = field(default_factory=dict)  # further ones, without times


def build(parts: Parts) -> Trace:
    """A trace whose events are in order of start, nested on their tracks, from time 0."""
    origin = _origin(parts)
    events = Table(EVENTS, parts.events)
    order = start_order(events["start_ns"], events["duration_ns"])
    events = events if order is None else events.take(order)
    tolerance = rounding(events["start_ns"], events["duration_ns"])
    start, duration = events["start_ns"] - origin, events["duration_ns"]
    parent = parents(events["track"], start, duration, tolerance)
    columns = {"start_ns": start, "parent": parent, "self_ns": self_times(parent, start, duration)}
    events = events.with_columns(**columns)
    metadata = replace(parts.metadata, origin_ns=origin, tolerance_ns=tolerance)
    tables = {
        "events": events,
        "tracks": Table(TRACKS, parts.tracks),
        "flows": _tied(parts.arrows, events, origin),
        "instants": Table(INSTANTS, _rebased(parts.instants, origin)),
        "counters": Table(COUNTERS, _rebased(parts.counters, origin)),
        "memory": _memory(parts, events, origin),
        **parts.tables,
    }
    return Trace(tables, metadata, parts.arguments).with_warnings(parts.warnings)


def rounding(start: Times, duration: Times) -> int:
    """The recorder's rounding, ns: a microsecond if all times are whole microseconds."""
    first = slice(_SAMPLE)
    parts = (start[first], duration[first], start, duration)
    whole = not any((times % MICROSECOND).any() for times in parts)
    return MICROSECOND if whole and len(start) else _FINE_TOLERANCE_NS


def _origin(parts: Parts) -> int:
    times = [
        np.asarray(columns[name]).min()
        for columns, name in (
            (parts.events, "start_ns"),
            (parts.instants, "time_ns"),
            (parts.counters, "time_ns"),
            (parts.memory, "time_ns"),
        )
        if len(columns.get(name, ()))
    ]
    return int(min(times, default=0))


def _rebased(columns: Mapping[str, Any], origin: int) -> dict[str, Any]:
    if "time_ns" not in columns:
        return {}
    return {**columns, "time_ns": np.asarray(columns["time_ns"], np.int64) - origin}


def _memory(parts: Parts, events: Table, origin: int) -> Table:
    columns = _rebased(parts.memory, origin)
    if not columns:
        return Table(MEMORY, {})
    columns["event"] = _around(events, np.asarray(columns.pop("track")), columns["time_ns"])
    table = Table(MEMORY, columns)
    return table.take(np.argsort(table["time_ns"], kind="stable"))


def _around(events: Table, track: Array, time: Array) -> Ids32:
    return enclosing(
        track, time, events["track"], events["start_ns"], events["duration_ns"], events["parent"]
    )


def _tied(arrows: Arrows | None, events: Table, origin: int) -> Table:
    """Flow arrows with each end tied to an event: a row per head, and per tail without a head."""
    if arrows is None or not len(arrows.identity):
        return Table(FLOWS, {})
    time = arrows.time_ns - origin
    ends = _around(events, arrows.track, time)
    loose = ends < 0
    if loose.any():
        ends[loose] = _next_started(events, arrows.track[loose], time[loose])
    tails, heads = np.flatnonzero(~arrows.is_head), np.flatnonzero(arrows.is_head)
    tail_of = _match_tails(arrows, tails, heads)
    alone = tails[~np.isin(tails, tail_of)]
    source = np.concatenate([np.where(tail_of < 0, -1, ends[tail_of]), ends[alone]])
    target = np.concatenate([ends[heads], np.full(len(alone), -1, np.int32)])
    kind = arrows.kind.take(np.concatenate([heads, alone]))
    return Table(FLOWS, {"kind": kind, "source_event": source, "target_event": target})


def _match_tails(arrows: Arrows, tails: Rows, heads: Rows) -> Rows:
    """For each head the tail of the same kind and id, or -1."""
    key = arrows.identity * (len(arrows.kind.values) + 1) + arrows.kind.codes
    return np.append(tails, -1)[places_among(key[tails], key[heads])]


def _next_started(events: Table, track: Array, time: Array) -> Ids32:
    """The event that starts next on a track, for an arrow's end between two events."""
    reversed_event = last_started(track, -time, events["track"][::-1], -events["start_ns"][::-1])
    return np.where(reversed_event < 0, -1, len(events) - 1 - reversed_event).astype(np.int32)
