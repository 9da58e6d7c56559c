"""Answers about the timeline: its levels, the place of an event, searches, and raw events."""

import msgspec
import numpy as np

from stepscope.base.arrays import IntArray, Mask
from stepscope.errors import ServeError
from stepscope.faces.page.level_columns import WireLevel, wire_level
from stepscope.faces.page.requests import Query
from stepscope.faces.page.trace_view import TraceView
from stepscope.facts.timeline.chosen_events import Marks
from stepscope.facts.timeline.chrome_export import ChromeTrace
from stepscope.facts.timeline.operation import StepId

_MOST = 10_000  # events of a search; chosen: bounds the answer, which counts all


class Levels(msgspec.Struct):
    """All levels down to one, the steps first; or at most 32 inside the operations of one."""

    levels: list[WireLevel]


class LevelAnswer(msgspec.Struct):
    """One level."""

    level: WireLevel


class Place(msgspec.Struct):
    """Where the timeline shows a raw event."""

    event: int  # its id
    path: str  # of the smallest operation that holds it; empty outside all steps
    level: str  # path of the level that lists this operation


class Hits(msgspec.Struct):
    """How many of the events that were found lie in each operation of a level."""

    path: str  # of the level
    hits: list[int]  # one number for each operation of the level


def levels(view: TraceView, query: Query) -> Levels:
    """Every level from the steps down to the one inside an operation.

    Query:
        path: of the operation; by default the steps alone.
        every: 1 to list all threads and streams.
    """
    shown = view.timeline.levels(query.text("path"), query.flag("every"))
    return Levels([wire_level(level, view) for level in shown])


def level(view: TraceView, query: Query) -> LevelAnswer:
    """The level inside an operation.

    Query:
        path: of the operation; by default the steps.
        every: 1 to list all threads and streams.
    """
    return LevelAnswer(wire_level(view.timeline.level(query.text("path"), query.flag("every")), view))


def levels_inside(view: TraceView, query: Query) -> Levels:
    """The levels that may be opened next: those inside the longest operations of a level.

    Query:
        path: of the level; by default the steps.
        every: 1 to list all threads and streams.
    """
    inside = view.timeline.inside(query.text("path"), query.flag("every"))
    return Levels([wire_level(level, view) for level in inside])


def path(view: TraceView, query: Query) -> Place:
    """The operation that holds a raw event.

    Query:
        event: id of the event.
    """
    event = event_of(view, query)
    path = view.timeline.path_of(event)
    return Place(event, path, path.rpartition("/")[0])


def trace(view: TraceView, query: Query) -> ChromeTrace:
    """The raw events of an operation in Chrome's Trace Event Format, as an attachment.

    Slices are on their threads and streams with names and arguments; arrows lead from launches to
    device work and from forward to backward.

    Query:
        path: of the operation.
    """
    return view.timeline.chrome_trace(query.text("path"))


# -- parts of other answers


def event_of(view: TraceView, query: Query) -> int:
    """The event that a request names."""
    event = query.number("event")
    if event is None or event >= len(view.trace.events):
        raise ServeError(f"expected an event from 0 to {len(view.trace.events) - 1}, found {event}", 404)
    return event


def hits(view: TraceView, query: Query, marks: Marks) -> list[Hits]:
    """How many marked events lie in each operation of the levels on screen."""
    shown = view.timeline.levels(query.text("path"), query.flag("every"))
    return [Hits("/".join(level.path), marks.hits(level).tolist()) for level in shown]


def in_step_of(view: TraceView, query: Query, rows: IntArray) -> Mask:
    """Which events are of the step on screen; none if all steps are on screen."""
    path = query.text("path").strip("/")
    if not path:
        return np.zeros(len(rows), np.bool_)
    index, (step, rank) = view.timeline.index, StepId.of(path)
    return (index.events["step"][rows] == step) & (index.rank[rows] == rank)


class SearchAnswer(msgspec.Struct):
    """How much of a search the levels on screen have."""

    text: str  # as asked for
    total: int  # number of events found
    levels: list[Hits]  # hits in the levels on screen


class FoundName(msgspec.Struct):
    """All events of one name that were found."""

    name: str  # as recorded
    short: str  # shortened
    category: str
    count: int
    total_ns: int  # time of all of them; where one is inside another, both count
    least_ns: int
    most_ns: int
    longest_event: int  # id of the longest one


class FoundEvents(msgspec.Struct):
    """Columns of one length, a row for each event found, in order of start."""

    event: list[int]  # its id; `path?event=` returns its place
    name: list[int]  # index into `names`
    start_ns: list[int]  # relative to the trace's start; empty in a single file
    duration_ns: list[int]
    step: list[int | None]  # null outside all steps
    rank: list[int]
    track: list[int]  # its number, in the axis's ids after `t`; empty in a single file


class SearchHits(msgspec.Struct):
    """Every event that a search found, with totals by name."""

    text: str  # as asked for
    total: int  # number of events found
    names: list[FoundName]  # with most time first; they count all events
    events: FoundEvents  # at most 10,000, the longest ones


def search(view: TraceView, query: Query) -> SearchAnswer:
    """How many events whose name contains a text lie in each operation of the levels on screen.

    Query:
        text: to look for, ignoring case.
        path: of the level on screen.
        every: 1 if all threads and streams are on screen.
    """
    text = query.text("text")
    marks = view.timeline.search(text)
    return SearchAnswer(text, marks.total, hits(view, query, marks))


def search_hits(view: TraceView, query: Query) -> SearchHits:
    """Every event whose recorded or short name contains a text, with totals by name.

    Query:
        text: to look for, ignoring case.
    """
    text = query.text("text")
    rows = np.flatnonzero(view.timeline.search(text).chosen)
    names, of_name = _found_names(view, rows)
    events = view.trace.events
    longest = np.sort(np.argsort(-events["duration_ns"][rows], kind="stable")[:_MOST])
    listed = rows[longest]
    found = FoundEvents(
        event=listed.tolist(),
        name=of_name[longest].tolist(),
        start_ns=events["start_ns"][listed].tolist(),
        duration_ns=events["duration_ns"][listed].tolist(),
        step=[step if step >= 0 else None for step in events["step"][listed].tolist()],
        rank=view.timeline.index.rank[listed].tolist(),
        track=events["track"][listed].tolist(),
    )
    return SearchHits(text, len(rows), names, found)


def _found_names(view: TraceView, rows: IntArray) -> tuple[list[FoundName], IntArray]:
    """The names of events, with most time first, and the position of each event's name."""
    events, duration = view.trace.events, view.trace.events["duration_ns"]
    name, category = events.text("name"), events.text("category")
    codes, of_code = np.unique(name.codes[rows], return_inverse=True)
    by_length = rows[np.lexsort((duration[rows], of_code))]
    count = np.bincount(of_code, minlength=len(codes))
    total = np.bincount(of_code, duration[rows], len(codes)).astype(np.int64)
    ends = np.cumsum(count)
    shortest, longest = by_length[ends - count], by_length[ends - 1]
    order = np.argsort(-total, kind="stable")
    names = [
        FoundName(
            name=name[event] or "",
            short=view.short_name(event),
            category=category[event] or "",
            count=int(count[at]),
            total_ns=int(total[at]),
            least_ns=int(duration[shortest[at]]),
            most_ns=int(duration[event]),
            longest_event=event,
        )
        for at, event in zip(order.tolist(), longest[order].tolist(), strict=True)
    ]
    return names, np.argsort(order)[of_code]
