"""Answers to a search: what the levels on screen have of it, and every event found."""

from __future__ import annotations

import msgspec
import numpy as np

from stepscope.arrays import IntArray
from stepscope.serve.request_parameters import Query
from stepscope.serve.timeline_answers import Hits, hits
from stepscope.serve.trace_view import TraceView

_MOST = 10_000


class SearchAnswer(msgspec.Struct):
    """How much of a search the levels on screen have.

    Attributes:
        text: as asked for.
        total: number of events found.
        levels: hits in the levels on screen.
    """

    text: str
    total: int
    levels: list[Hits]


class FoundName(msgspec.Struct):
    """All events of one name that were found.

    Attributes:
        name: as recorded.
        short: shortened.
        total_ns: time of all of them; where one is inside another, both count.
        longest_event: id of the longest one.
    """

    name: str
    short: str
    category: str
    count: int
    total_ns: int
    least_ns: int
    most_ns: int
    longest_event: int


class FoundEvents(msgspec.Struct):
    """Columns of one length, a row for each event found, in order of start.

    Attributes:
        event: its id; `path?event=` returns its place.
        name: index into `names`.
        start_ns: relative to the trace's start; empty in a single file.
        step: null outside all steps.
    """

    event: list[int]
    name: list[int]
    start_ns: list[int]
    duration_ns: list[int]
    step: list[int | None]
    rank: list[int]


class SearchHits(msgspec.Struct):
    """Every event that a search found, with totals by name.

    Attributes:
        text: as asked for.
        total: number of events found.
        names: with most time first; they count all events.
        events: at most 10,000, the longest ones.
    """

    text: str
    total: int
    names: list[FoundName]
    events: FoundEvents


def search(view: TraceView, query: Query) -> SearchAnswer:
    """How many events whose name contains a text lie in each operation of the levels on screen.

    Query:
        text: to look for, ignoring case.
        path: of the level on screen.
        every: 1 if all threads and streams are on screen.
    """
    text = query.text("text")
    found = view.timeline.search(text)
    return SearchAnswer(text, found.total, hits(view, query, found))


def search_hits(view: TraceView, query: Query) -> SearchHits:
    """Every event whose recorded or short name contains a text, with totals by name.

    Query:
        text: to look for, ignoring case.
    """
    text = query.text("text")
    rows = np.flatnonzero(view.timeline.search(text).chosen)
    names, of_name = _names(view, rows)
    durations = view.trace.events["duration_ns"][rows]
    longest = np.sort(np.argsort(-durations, kind="stable")[:_MOST])
    return SearchHits(text, len(rows), names, _events(view, rows[longest], of_name[longest]))


def _names(view: TraceView, rows: IntArray) -> tuple[list[FoundName], IntArray]:
    """The names of events, with most time first, and the position of each event's name."""
    events = view.trace.events
    codes, of_code = np.unique(events.text("name").codes[rows], return_inverse=True)
    durations = events["duration_ns"][rows]
    by_length = np.lexsort((durations, of_code))
    ends = np.cumsum(np.bincount(of_code, minlength=len(codes)))
    groups = np.split(rows[by_length], ends[:-1]) if len(codes) else []
    totals = np.array([events["duration_ns"][group].sum() for group in groups], np.int64)
    order = np.argsort(-totals, kind="stable")
    position = np.empty(len(codes), np.int64)
    position[order] = np.arange(len(codes))
    return [_found_name(view, groups[at]) for at in order.tolist()], position[of_code]


def _found_name(view: TraceView, rows: IntArray) -> FoundName:
    """What events of one name have in common, given from the shortest to the longest."""
    events, longest = view.trace.events, int(rows[-1])
    durations = events["duration_ns"][rows]
    return FoundName(
        name=events.text("name")[longest] or "",
        short=view.short_name(longest),
        category=events.text("category")[longest] or "",
        count=len(rows),
        total_ns=int(durations.sum()),
        least_ns=int(durations[0]),
        most_ns=int(durations[-1]),
        longest_event=longest,
    )


def _events(view: TraceView, rows: IntArray, names: IntArray) -> FoundEvents:
    events = view.trace.events
    steps = events["step"][rows].tolist()
    return FoundEvents(
        event=rows.tolist(),
        name=names.tolist(),
        start_ns=events["start_ns"][rows].tolist(),
        duration_ns=events["duration_ns"][rows].tolist(),
        step=[step if step >= 0 else None for step in steps],
        rank=view.timeline.index.rank[rows].tolist(),
    )
