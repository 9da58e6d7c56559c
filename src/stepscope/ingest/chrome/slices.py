"""Slices of time: complete events, and paired begin and end events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepscope.arrays import Array, Mask, Rows, Times
from stepscope.ingest.chrome.begin_end_pairs import Mark, pair
from stepscope.ingest.chrome.categories import category
from stepscope.ingest.chrome.event_columns import LONGEST_NS, EventColumns
from stepscope.ingest.chrome.uncategorized import set_device_work
from stepscope.ingest.distinct_rows import distinct_rows
from stepscope.parallel import in_threads
from stepscope.trace.columns import taken
from stepscope.trace.row_order import start_order
from stepscope.trace.schema import CATEGORIES
from stepscope.trace.spill import spilled
from stepscope.trace.table import Text

ASYNC = {"b": False, "S": False, "e": True, "F": True}
STACKED = {"B": False, "E": True}


class Slices(NamedTuple):
    """For each slice its event, time and track; shape (slices,)."""

    row: Rows
    start_ns: Times
    duration_ns: Times
    track: NDArray[np.int64]


def slices_of(recorded: EventColumns) -> Slices:
    """Every slice, in order of start, so that each column is put in order as it is made."""
    whole = _complete(recorded)
    last = int((whole.start_ns + whole.duration_ns).max(initial=_last_time(recorded)))
    paired = [_stacked(recorded, last), _async(recorded, last)]
    if not any(len(slices.row) for slices in paired):
        return _by_start(whole)
    joined = [np.concatenate(part) for part in zip(whole, *paired, strict=True)]
    order = np.argsort(joined[0], kind="stable")  # as in the file
    return _by_start(Slices(*(part[order] for part in joined)))


def _by_start(slices: Slices) -> Slices:
    order = start_order(slices.start_ns, slices.duration_ns)
    return slices if order is None else Slices(*(taken(part, order) for part in slices))


def _last_time(recorded: EventColumns) -> int:
    return int(recorded.time_ns.max(where=recorded.usable, initial=0))


def _complete(recorded: EventColumns) -> Slices:
    rows = recorded.of_phase("X")
    start, track = (taken(column, rows) for column in (recorded.time_ns, recorded.track))
    return Slices(spilled(rows), start, spilled(_durations(recorded, rows)), track)


def _durations(recorded: EventColumns, rows: Rows) -> NDArray[np.int64]:
    us = taken(recorded.columns.take("duration_us"), rows)
    thread = taken(recorded.columns.take("thread_duration_us"), rows)
    borrowed = np.isnan(us) & (thread >= 0)
    us = np.where(borrowed, thread, us)
    missing, negative, long = np.isnan(us), us < 0, us * 1000 > LONGEST_NS
    for code, message, rows_of in (
        ("thread_duration", "a slice has no `dur`; its `tdur` is used", borrowed),
        ("no_duration", "a slice has no valid duration; 0 is used", missing),
        ("negative_duration", "a slice has a negative duration; 0 is used", negative),
        ("long_duration", "a slice lasts over 104 days; a duration of 0 is used", long),
    ):
        recorded.log(code, message, int(rows_of.sum()))
    ns = np.rint(np.where(missing | negative | long, 0, us) * 1000)
    return np.asarray(ns, np.int64)


def _stacked(recorded: EventColumns, last: int) -> Slices:
    marks: dict[int, list[Mark]] = defaultdict(list)
    for row in recorded.of_phase(*STACKED).tolist():
        marks[int(recorded.track[row])].append(_mark(recorded, row, STACKED))
    return _paired(recorded, marks, {track: track for track in marks}, last)


def _async(recorded: EventColumns, last: int) -> Slices:
    """Async slices, on a separate track for each process and category."""
    marks: dict[tuple[Any, ...], list[Mark]] = defaultdict(list)
    tracks: dict[tuple[Any, ...], int] = {}
    identity = recorded.columns.identity
    keys = list(recorded.columns.tracks)
    for row in recorded.of_phase(*ASYNC).tolist():
        process, _ = keys[int(recorded.track[row])]
        recorded_category = recorded.phases[int(recorded.phase[row])][1]
        key = (process, recorded_category, int(identity[row]))
        marks[key].append(_mark(recorded, row, ASYNC))
        tracks[key] = recorded.columns.tracks[process, f"async {recorded_category}".strip()]
    return _paired(recorded, marks, tracks, last)


def _mark(recorded: EventColumns, row: int, ends: Mapping[str, bool]) -> Mark:
    name = recorded.name[row] or ""
    return Mark(row, int(recorded.time_ns[row]), name, ends[recorded.letter(row)])


def _paired(
    recorded: EventColumns, marks: Mapping[Any, list[Mark]], tracks: Mapping[Any, int], last: int
) -> Slices:
    found = [
        (slice_.row, slice_.start_ns, slice_.end_ns - slice_.start_ns, tracks[key])
        for key, group in marks.items()
        for slice_ in pair(group, last, recorded.log)
    ]
    return Slices(*np.array(found, np.int64).reshape(-1, 4).T)


def event_columns(recorded: EventColumns, slices: Slices, streams: Mask) -> dict[str, Any]:
    """Columns of the events table; `streams` are the tracks that only labels call a stream."""
    rows = slices.row
    columns = recorded.columns
    numbers = ("correlation", "sequence", "forward_thread", "bytes")
    makers: dict[str, Callable[[], Any]] = {
        "category": partial(_categories, recorded, slices, streams),
        "name": partial(recorded.name.take, rows),
        "source": partial(_taken, columns.column, "source", rows),
        **{name: partial(_taken, columns.take, name, rows) for name in numbers},
    }
    made = in_threads(lambda make: make(), [*makers.values()], len(rows))
    return {
        "track": slices.track,
        "start_ns": slices.start_ns,
        "duration_ns": slices.duration_ns,
        **dict(zip(makers, made, strict=True)),
    }


def _taken(column: Callable[[str], Array], name: str, rows: Rows) -> Array:
    return taken(column(name), rows)


def _categories(recorded: EventColumns, slices: Slices, streams: Mask) -> Text:
    """Category by (recorded category, name), computed once per distinct pair."""
    names, rows = recorded.name, slices.row
    pairs, pair_of = distinct_rows(recorded.phase[rows], names.codes[rows])
    codes = [
        CATEGORIES.index(category(recorded.phases[phase][1], names.values[name]))
        for phase, name in pairs
    ]
    found = Text(np.array(codes, np.int8)[pair_of], CATEGORIES)
    if not streams.any():
        return found
    on_stream = (slices.track < len(streams)) & streams[np.minimum(slices.track, len(streams) - 1)]
    bare = np.array([not category for _, category in recorded.phases], np.bool_)
    return set_device_work(found, names.take(rows), on_stream & bare[recorded.phase[rows]])
