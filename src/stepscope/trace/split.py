"""Splits a trace by track; the inverse of `concat`."""

from __future__ import annotations

import numpy as np

from stepscope.arrays import Ids32, IntArray
from stepscope.trace.arguments import Arguments
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace


def split(trace: Trace, part: IntArray) -> list[Trace]:
    """Split a trace that a reader built, before annotation.

    Times and positions in the file are unchanged. The first part gets the warnings and the memory
    rows outside all events.

    Args:
        trace: a trace before annotation.
        part: the part of each track, from 0 on, shape (tracks,).
    """
    return [_part(trace, part, number) for number in range(int(part.max(initial=0)) + 1)]


def _part(trace: Trace, part: IntArray, number: int) -> Trace:
    tracks, events = np.flatnonzero(part == number), trace.events
    rows = np.flatnonzero(part[events["track"]] == number)
    track, event = _new_ids(tracks, len(part)), _new_ids(rows, len(events))
    of_event = np.append(part[events["track"]], 0)  # the first part gets rows outside all events
    flows, memory = trace["flows"], trace["memory"]
    ends = [event[flows[end]] for end in ("source_event", "target_event")]
    memory = memory.take(of_event[memory["event"]] == number)
    tables = {
        "events": _renumbered(events.take(rows), track).with_columns(
            parent=event[events["parent"][rows]]
        ),
        "tracks": trace["tracks"].take(tracks),
        "flows": _kept_flows(flows, *ends),
        "memory": memory.with_columns(event=event[memory["event"]]),
        **{
            name: _renumbered(trace[name].take(part[trace[name]["track"]] == number), track)
            for name in ("instants", "counters")
        },
        **({} if number else {"warnings": trace["warnings"]}),
    }
    return Trace(tables, trace.metadata, _arguments(trace, events["source"][rows]))


def _new_ids(rows: IntArray, length: int) -> Ids32:
    """The new id for each old id, -1 for rows left out; -1 stays -1."""
    place = np.full(length + 1, -1, np.int32)
    place[rows] = np.arange(len(rows))
    return place


def _renumbered(table: Table, track: IntArray) -> Table:
    return table.with_columns(track=track[table["track"]])


def _kept_flows(flows: Table, source: IntArray, target: IntArray) -> Table:
    kept = (source >= 0) | (target >= 0)
    return flows.take(kept).with_columns(source_event=source[kept], target_event=target[kept])


def _arguments(trace: Trace, sources: IntArray) -> Arguments:
    """The blocks that hold arguments of these events."""
    first, last = int(sources.min(initial=0)), int(sources.max(initial=-1))
    return Arguments(
        tuple(
            block
            for block in trace.arguments.blocks
            if block.sources[0] <= last and block.sources[-1] >= first
        )
    )
