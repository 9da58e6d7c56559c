"""Answers about the timeline: its levels, where an event is shown, searching, raw events."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.errors import ServeError
from stepscope.serve.opened import OpenTrace
from stepscope.serve.query import Query
from stepscope.timeline import Level
from stepscope.timeline.chrome import chrome_trace
from stepscope.timeline.index import Mask
from stepscope.timeline.names import short_name
from stepscope.timeline.raw_events import Places
from stepscope.timeline.search import Marks
from stepscope.timeline.step_id import StepId

_FEW, _MANY = 20, 100


def levels(opened: OpenTrace, query: Query) -> dict[str, Any]:
    """Every level from the steps down to the one inside an operation."""
    path = query.text("path")
    found = opened.timeline.levels(path, query.flag("every"))
    return {"path": path, "levels": [opened.timeline.to_json(level) for level in found]}


def level(opened: OpenTrace, query: Query) -> dict[str, Any]:
    """The level inside an operation."""
    path = query.text("path")
    found = opened.timeline.level(path, query.flag("every"))
    return {"path": path, "level": opened.timeline.to_json(found)}


def path(opened: OpenTrace, query: Query) -> dict[str, Any]:
    """The operation that holds an event."""
    event = event_of(opened, query)
    return {"event": event, **place_of(opened, event)}


def search(opened: OpenTrace, query: Query) -> dict[str, Any]:
    """Which operations on screen hold events of a name, and the longest of these.

    Where these are shown is asked for when one is gone to: to find it, levels have to be opened.
    """
    found = opened.timeline.search(query.text("text"))
    limit = query.number("limit")
    return {
        "text": query.text("text"),
        "total": found.total,
        "levels": hits(opened, query, found),
        "first": _longest(opened, query, found, min(_FEW if limit is None else limit, _MANY)),
    }


def names(opened: OpenTrace, query: Query) -> dict[str, Any]:
    """The name of each raw event of an operation, and the smallest operation that holds it."""
    at = query.text("path")
    return names_of(opened, at, opened.timeline.places(at))


def trace(opened: OpenTrace, query: Query) -> dict[str, Any]:
    """The raw events of an operation as a Chrome trace."""
    at = query.text("path")
    if query.number("event") is None:
        return opened.timeline.chrome_trace(at)
    event = np.array([event_of(opened, query)])
    index = opened.timeline.index
    first, end = index.inside(event)
    inside = event if index.on_device[event[0]] else index.order[int(first[0]) : int(end[0])]
    _, work = index.device_work(event)
    return chrome_trace(index, np.unique(np.concatenate([inside, work])))


# -- what other answers are made of


def names_of(opened: OpenTrace, at: str, places: Places) -> dict[str, Any]:
    """The names of an operation's raw events, and where they are shown."""
    events = opened.trace.events
    text = events.text("name").take(places.events).compact()
    strings = list(text.values)
    return {
        "path": at,
        "strings": strings,
        "short": [short_name(name) for name in strings],
        "paths": places.paths,
        "event": places.events.tolist(),
        "name": text.codes.tolist(),
        "place": places.place.tolist(),
        "duration_ns": events["duration_ns"][places.events].tolist(),
    }


def event_of(opened: OpenTrace, query: Query) -> int:
    """The event that a request names."""
    event = query.number("event")
    if event is None or event >= len(opened.trace.events):
        count = len(opened.trace.events)
        raise ServeError(f"expected an event from 0 to {count - 1}, found {event}", 404)
    return event


def place_of(opened: OpenTrace, event: int) -> dict[str, str]:
    """The path of the smallest operation that holds an event, and of the level that lists it."""
    found = opened.timeline.path_of(event)
    return {"path": found, "level": found.rpartition("/")[0]}


def hits(opened: OpenTrace, query: Query, marks: Marks) -> list[dict[str, Any]]:
    """How many of some events lie in each operation of the levels on screen."""
    shown: list[Level] = opened.timeline.levels(query.text("path"), query.flag("every"))
    return [{"path": "/".join(one.path), "hits": marks.hits(one).tolist()} for one in shown]


def _longest(opened: OpenTrace, query: Query, found: Marks, limit: int) -> list[dict[str, Any]]:
    """The longest events found, those of the step on screen first."""
    events = opened.trace.events
    rows = np.flatnonzero(found.chosen)
    here = in_step_of(opened, query, rows)
    order = np.lexsort((-events["duration_ns"][rows], ~here))[:limit]
    return [_told(opened, event) for event in rows[order].tolist()]


def in_step_of(opened: OpenTrace, query: Query, rows: NDArray[np.integer]) -> Mask:
    """Which events are of the step on screen; none of them where all steps are."""
    path = query.text("path").strip("/")
    if not path:
        return np.zeros(len(rows), np.bool_)
    index, (step, rank) = opened.timeline.index, StepId.of(path)
    inside: Mask = (index.events["step"][rows] == step) & (index.rank[rows] == rank)
    return inside


def _told(opened: OpenTrace, event: int) -> dict[str, Any]:
    events, step = opened.trace.events, int(opened.trace.events["step"][event])
    return {
        "event": event,
        "name": short_name(events.text("name")[event] or ""),
        "category": events.text("category")[event] or "",
        "step": step if step >= 0 else None,
        "rank": int(opened.timeline.index.rank[event]),
        "duration_ns": int(events["duration_ns"][event]),
    }
