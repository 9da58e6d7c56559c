"""Answers about the timeline: its levels, the place of an event, and raw events."""

from __future__ import annotations

import msgspec
import numpy as np

from stepscope.arrays import IntArray, Mask
from stepscope.errors import ServeError
from stepscope.serve.level_columns import WireLevel, wire_level
from stepscope.serve.request_parameters import Query
from stepscope.serve.trace_view import TraceView
from stepscope.timeline.chosen_events import Marks
from stepscope.timeline.chrome_export import ChromeTrace, chrome_trace
from stepscope.timeline.operation import StepId


class Levels(msgspec.Struct):
    """All levels down to one: the first lists the steps, the last what is inside `path`.

    Attributes:
        path: as asked for.
    """

    path: str
    levels: list[WireLevel]


class LevelAnswer(msgspec.Struct):
    """One level.

    Attributes:
        path: as asked for.
    """

    path: str
    level: WireLevel


class LevelsInside(msgspec.Struct):
    """The levels inside the operations of one level.

    Attributes:
        path: as asked for.
        levels: inside its longest operations, at most 32.
    """

    path: str
    levels: list[WireLevel]


class Place(msgspec.Struct):
    """Where the timeline shows a raw event.

    Attributes:
        event: its id.
        path: of the smallest operation that holds it; empty outside all steps.
        level: path of the level that lists this operation.
    """

    event: int
    path: str
    level: str


class Hits(msgspec.Struct):
    """How many of the events that were found lie in each operation of a level.

    Attributes:
        path: of the level.
        hits: one number for each operation of the level.
    """

    path: str
    hits: list[int]


def levels(view: TraceView, query: Query) -> Levels:
    """Every level from the steps down to the one inside an operation.

    Query:
        path: of the operation; by default the steps alone.
        every: 1 to list all threads and streams.
    """
    path = query.text("path")
    found = view.timeline.levels(path, query.flag("every"))
    return Levels(path, [wire_level(level, view) for level in found])


def level(view: TraceView, query: Query) -> LevelAnswer:
    """The level inside an operation.

    Query:
        path: of the operation; by default the steps.
        every: 1 to list all threads and streams.
    """
    path = query.text("path")
    found = view.timeline.level(path, query.flag("every"))
    return LevelAnswer(path, wire_level(found, view))


def levels_inside(view: TraceView, query: Query) -> LevelsInside:
    """The levels that may be opened next: those inside the longest operations of a level.

    Query:
        path: of the level; by default the steps.
        every: 1 to list all threads and streams.
    """
    path = query.text("path")
    found = view.timeline.inside(path, query.flag("every"))
    return LevelsInside(path, [wire_level(level, view) for level in found])


def path(view: TraceView, query: Query) -> Place:
    """The operation that holds a raw event.

    Query:
        event: id of the event.
    """
    return place_of(view, event_of(view, query))


def trace(view: TraceView, query: Query) -> ChromeTrace:
    """The raw events of an operation in Chrome's Trace Event Format, as an attachment.

    Slices are on their threads and streams with names and arguments; arrows lead from launches to
    device work and from forward to backward.

    Query:
        path: of the operation.
        event: id of a raw event, instead of `path`.
    """
    if query.number("event") is None:
        return view.timeline.chrome_trace(query.text("path"))
    event = np.array([event_of(view, query)])
    index = view.timeline.index
    first, end = index.inside(event)
    inside = event if index.on_device[event[0]] else index.order[int(first[0]) : int(end[0])]
    _, work = index.device_work(event)
    return chrome_trace(index, np.unique(np.concatenate([inside, work])))


# -- parts of other answers


def event_of(view: TraceView, query: Query) -> int:
    """The event that a request names."""
    event = query.number("event")
    if event is None or event >= len(view.trace.events):
        count = len(view.trace.events)
        raise ServeError(f"expected an event from 0 to {count - 1}, found {event}", 404)
    return event


def place_of(view: TraceView, event: int) -> Place:
    """The smallest operation that holds an event, and the level that lists it."""
    path = view.timeline.path_of(event)
    return Place(event, path, path.rpartition("/")[0])


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
    inside: Mask = (index.events["step"][rows] == step) & (index.rank[rows] == rank)
    return inside
