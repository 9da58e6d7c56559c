"""One trace as several, each with some of its tracks: what `concat` joins, told apart."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.trace.arguments import Arguments
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

Ids = NDArray[np.integer]


def split(trace: Trace, part: Ids) -> list[Trace]:
    """The parts of a trace as a reader made it, from which nothing is derived yet.

    Times, and positions in the file, stay what they are. Warnings, and memory outside all events,
    are the first part's.

    Args:
        trace: what a reader made.
        part: the part of each track, from 0 on, shape (tracks,).
    """
    return [_part(trace, part, number) for number in range(int(part.max(initial=0)) + 1)]


def _part(trace: Trace, part: Ids, number: int) -> Trace:
    tracks, events = np.flatnonzero(part == number), trace.events
    rows = np.flatnonzero(part[events["track"]] == number)
    track, event = _places(tracks, len(part)), _places(rows, len(events))
    of_event = np.append(part[events["track"]], 0)  # what is in no event is the first part's
    flows, memory = trace["flows"], trace["memory"]
    ends = [event[flows[end]] for end in ("source_event", "target_event")]
    held = memory.take(of_event[memory["event"]] == number)
    tables = {
        "events": _on(events.take(rows), track).with_columns(parent=event[events["parent"][rows]]),
        "tracks": trace["tracks"].take(tracks),
        "flows": _tied(flows, *ends),
        "memory": held.with_columns(event=event[held["event"]]),
        **{
            name: _on(trace[name].take(part[trace[name]["track"]] == number), track)
            for name in ("instants", "counters")
        },
        **({} if number else {"warnings": trace["warnings"]}),
    }
    return Trace(tables, trace.metadata, _arguments(trace, events["source"][rows]))


def _places(rows: Ids, length: int) -> NDArray[np.int32]:
    """The new number of each old one, -1 for those left out; -1 stays -1."""
    place = np.full(length + 1, -1, np.int32)
    place[rows] = np.arange(len(rows))
    return place


def _on(table: Table, track: Ids) -> Table:
    return table.with_columns(track=track[table["track"]])


def _tied(flows: Table, source: Ids, target: Ids) -> Table:
    kept = (source >= 0) | (target >= 0)
    return flows.take(kept).with_columns(source_event=source[kept], target_event=target[kept])


def _arguments(trace: Trace, sources: Ids) -> Arguments:
    """Blocks that hold arguments of these events; whoever merges traces writes one by one."""
    first, last = int(sources.min(initial=0)), int(sources.max(initial=-1))
    return Arguments(
        tuple(
            block
            for block in trace.arguments.blocks
            if block.sources[0] <= last and block.sources[-1] >= first
        )
    )
