"""The answer about a whole step, every level of it at once: what a single file holds."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from stepscope.base.json_text import json_bytes
from stepscope.faces.page.level_columns import (
    DeviceColumns,
    OperationColumns,
    device_columns,
    listed_parts,
    operation_columns,
    resources_of,
)
from stepscope.faces.page.operation_details import Instances, detail_columns
from stepscope.faces.page.selection import Selection, selected
from stepscope.faces.page.trace_view import TraceView
from stepscope.facts.timeline.chosen_events import EventPlaces, place_events
from stepscope.facts.timeline.level import Level, Opening, ResourceRow
from stepscope.facts.timeline.operation_labels import short_name
from stepscope.trace.sets import Interner

_FEW_ROWS = 5  # of a table: a file has those of many operations
_BOTH, _SHOWN, _EVERY = range(3)
_PLAIN = {int, str, type(None)}


class LevelRows(msgspec.Struct):
    """Columns of one length, a row for each level: a `WireLevel` but for its operations."""

    opened: list[int]  # place that it opens
    # 0 for a level that is the same with all threads and streams, 1 for one without those that are
    # hidden, 2 for the same with all
    lists: list[int]
    name: list[int]  # index into `strings`
    through: list[list[int]]  # indexes into `strings`
    start_ns: list[int]  # since the trace's start
    length_ns: list[int]  # of the level
    shift_ns: list[int]  # from the start of the CPU side to that of the device side
    passed: list[int]  # raw events of the opened operation itself
    hidden: list[int]  # raw events on resources that are not listed
    resources: list[int]  # number of its rows of `resources`; those of each level follow each other
    operations: list[int]  # number of its rows of `operations`
    device: list[int]  # number of its rows of `device`


class ResourceColumns(msgspec.Struct):
    """Columns of one length, a row for each resource of each level."""

    track: list[int]  # index into `tracks`
    busy_ns: list[int]
    shown: list[int]  # 1 if the level lists it


class EventColumns(msgspec.Struct):
    """Columns of one length, a row for each raw event of the step."""

    event: list[int]  # its id
    name: list[int]  # index into `names`
    place: list[int]  # of the smallest operation that holds it
    duration_ns: list[int]


class StepAnswer(msgspec.Struct):
    """The whole timeline of a step, or its costliest levels.

    The step is place 0; the operations of all levels that list all of theirs, in order, are the
    places from 1 on.
    """

    path: str  # of the step
    levels: LevelRows
    tracks: list[ResourceRow]  # resources, as in each level but for `busy_ns` and `shown`
    resources: ResourceColumns
    operations: OperationColumns
    device: DeviceColumns
    strings: list[str]  # what `operations`, `device` and `through` name
    events: EventColumns
    names: list[str]  # distinct names of raw events, as recorded
    short: list[str]  # the same names, shortened


class DetailColumn(msgspec.Struct):
    """A column of any values, each distinct one once."""

    values: list[Any]
    value: list[int]  # index into `values`, a row for each place


class DetailColumns(msgspec.Struct):
    """What is known of the operations at a step's places, with few rows in each table."""

    columns: dict[str, DetailColumn]  # the fields of `Details` but `path` and `level`


def step_of_levels(view: TraceView, path: str, openings: Sequence[Opening]) -> StepAnswer:
    """A step with some of its levels, those that contain them included."""
    whole = [opening.every for opening in openings]
    levels = [*whole, *(opening.shown for opening in openings if opening.shown is not opening.every)]
    places = place_events(view.timeline.index, path, view.timeline.raw_events(path), [openings])
    place = {inside: number for number, inside in enumerate(places.paths)}
    strings: Interner[str] = Interner()
    tracks, resources, counts = _resources(levels)
    operations = operation_columns(levels, view, strings)
    device = device_columns(levels, view, strings)
    level_rows = LevelRows(
        opened=[place["/".join(level.path)] for level in levels],
        lists=[
            *(_BOTH if opening.shown is opening.every else _EVERY for opening in openings),
            *(_SHOWN for _ in levels[len(whole) :]),
        ],
        name=strings.codes(level.name for level in levels).tolist(),
        through=[strings.codes(level.through).tolist() for level in levels],
        length_ns=[level.end_ns - level.start_ns for level in levels],
        **{
            name: [getattr(level, name) for level in levels]
            for name in ("start_ns", "shift_ns", "passed", "hidden")
        },
        resources=counts,
        operations=[len(level) for level in levels],
        device=[len(listed_parts(level)) for level in levels],
    )
    events, names = _events(view, places)
    return StepAnswer(
        path=path,
        levels=level_rows,
        tracks=tracks,
        resources=resources,
        operations=operations,
        device=device,
        strings=list(strings),
        events=events,
        names=names,
        short=[short_name(name) for name in names],
    )


def details_of_levels(view: TraceView, path: str, openings: Sequence[Opening]) -> DetailColumns:
    both = Selection.joined(selected(view, path), *(opening.every for opening in openings))
    columns = detail_columns(view, both, _FEW_ROWS)
    return DetailColumns({name: _column(values) for name, values in columns.items()})


def _resources(levels: Sequence[Level]) -> tuple[list[ResourceRow], ResourceColumns, list[int]]:
    """The distinct resources of levels, a row for each of each level, and how many each has."""
    tracks: dict[tuple[str, int], ResourceRow] = {}
    number: Interner[tuple[str, int]] = Interner()
    columns, counts = ResourceColumns([], [], []), []
    for level in levels:
        rows = resources_of(level)
        counts.append(len(rows))
        for row in rows:
            tracks.setdefault((row.kind, row.id), row)
            columns.track.append(number[row.kind, row.id])
            columns.busy_ns.append(row.busy_ns)
            columns.shown.append(int(row.shown))
    return list(tracks.values()), columns, counts


def _events(view: TraceView, places: EventPlaces) -> tuple[EventColumns, list[str]]:
    events = view.trace.events
    text = events.text("name").take(places.events).compact()
    columns = EventColumns(
        event=places.events.tolist(),
        name=text.codes.tolist(),
        place=places.place.tolist(),
        duration_ns=events["duration_ns"][places.events].tolist(),
    )
    return columns, list(text.values)


def _column(values: list[Any]) -> DetailColumn:
    if {type(value) for value in values} <= _PLAIN:
        plain: Interner[Any] = Interner()
        codes = plain.codes(values).tolist()
        return DetailColumn(list(plain), codes)
    seen: dict[int, int] = {}  # answers that operations share are encoded once
    texts: Interner[bytes] = Interner()
    answers: list[Any] = []
    for value in values:
        if id(value) not in seen:
            short = replace(value, rows=value.rows[:_FEW_ROWS]) if isinstance(value, Instances) else value
            seen[id(value)] = texts[json_bytes(short)]
            answers += [short] if len(texts) > len(answers) else []
    return DetailColumn(answers, [seen[id(value)] for value in values])
