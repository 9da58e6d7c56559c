"""Slices of time: complete events, and begins and ends paired."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepscope.ingest.categories import category
from stepscope.ingest.pairing import Mark, pair
from stepscope.ingest.recorded import LONGEST_NS, Recorded, Rows
from stepscope.trace.schema import CATEGORIES
from stepscope.trace.table import Text

ASYNC = {"b": False, "S": False, "e": True, "F": True}
STACKED = {"B": False, "E": True}


class Slices(NamedTuple):
    """For each slice the event that tells of it, and its time and track; shape (slices,)."""

    row: Rows
    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    track: NDArray[np.int64]


def slices_of(recorded: Recorded) -> Slices:
    """Every slice, in file order of the event that begins it."""
    whole = _complete(recorded)
    last = int((whole.start_ns + whole.duration_ns).max(initial=_last_time(recorded)))
    paired = [_stacked(recorded, last), _async(recorded, last)]
    if not any(len(one.row) for one in paired):
        return whole
    joined = [np.concatenate(part) for part in zip(whole, *paired, strict=True)]
    order = np.argsort(joined[0], kind="stable")
    return Slices(*(part[order] for part in joined))


def _last_time(recorded: Recorded) -> int:
    return int(recorded.time_ns[recorded.usable].max(initial=0))


def _complete(recorded: Recorded) -> Slices:
    rows = recorded.of_phase("X")
    return Slices(rows, recorded.time_ns[rows], _durations(recorded, rows), recorded.track[rows])


def _durations(recorded: Recorded, rows: Rows) -> NDArray[np.int64]:
    us = recorded.columns.column("duration_us")[rows]
    thread = recorded.columns.column("thread_duration_us")[rows]
    borrowed = np.isnan(us) & (thread >= 0)
    us = np.where(borrowed, thread, us)
    missing, negative, long = np.isnan(us), us < 0, us * 1000 > LONGEST_NS
    for code, message, rows_of in (
        ("thread_duration", "a slice has no `dur`; its `tdur` is taken", borrowed),
        ("no_duration", "a slice has no duration that can be told; taken as 0", missing),
        ("negative_duration", "a slice has a negative duration; taken as 0", negative),
        ("long_duration", "a slice lasts over 104 days; taken as 0", long),
    ):
        recorded.tally(code, message, int(rows_of.sum()))
    ns = np.rint(np.where(missing | negative | long, 0, us) * 1000)
    return np.asarray(ns, np.int64)


def _stacked(recorded: Recorded, last: int) -> Slices:
    marks: dict[int, list[Mark]] = defaultdict(list)
    for row in recorded.of_phase(*STACKED).tolist():
        marks[int(recorded.track[row])].append(_mark(recorded, row, STACKED))
    return _paired(recorded, marks, {track: track for track in marks}, last)


def _async(recorded: Recorded, last: int) -> Slices:
    """Async slices go to a track of their own for each process and category."""
    marks: dict[tuple[Any, ...], list[Mark]] = defaultdict(list)
    tracks: dict[tuple[Any, ...], int] = {}
    identity = recorded.columns.column("identity")
    keys = list(recorded.columns.tracks)
    for row in recorded.of_phase(*ASYNC).tolist():
        process, _ = keys[int(recorded.track[row])]
        recorded_category = recorded.phases[int(recorded.phase[row])][1]
        key = (process, recorded_category, int(identity[row]))
        marks[key].append(_mark(recorded, row, ASYNC))
        tracks[key] = recorded.columns.tracks[process, f"async {recorded_category}".strip()]
    return _paired(recorded, marks, tracks, last)


def _mark(recorded: Recorded, row: int, ends: Mapping[str, bool]) -> Mark:
    name = recorded.name[row] or ""
    return Mark(row, int(recorded.time_ns[row]), name, ends[recorded.letter(row)])


def _paired(
    recorded: Recorded, marks: Mapping[Any, list[Mark]], tracks: Mapping[Any, int], last: int
) -> Slices:
    found = [
        (one.row, one.start_ns, one.end_ns - one.start_ns, tracks[key])
        for key, group in marks.items()
        for one in pair(group, last, recorded.tally)
    ]
    return Slices(*np.array(found, np.int64).reshape(-1, 4).T)


def event_columns(recorded: Recorded, slices: Slices) -> dict[str, Any]:
    """Columns of the events table."""
    rows = slices.row
    numbers = ("correlation", "sequence", "forward_thread", "bytes", "source")
    return {
        "track": slices.track,
        "name": recorded.name.take(rows),
        "category": _categories(recorded, rows),
        "start_ns": slices.start_ns,
        "duration_ns": slices.duration_ns,
        **{name: recorded.columns.column(name)[rows] for name in numbers},
    }


def _categories(recorded: Recorded, rows: Rows) -> Text:
    """Category by (recorded category, name), worked out once per distinct pair."""
    names = recorded.name
    width = len(names.values) + 1
    both = recorded.phase[rows].astype(np.int64) * width + names.codes[rows]
    pairs, inverse = np.unique(both, return_inverse=True)
    codes = [
        CATEGORIES.index(category(recorded.phases[phase][1], names.values[name]))
        for phase, name in (divmod(one, width) for one in pairs.tolist())
    ]
    return Text(np.array(codes, np.int8)[inverse], CATEGORIES)
