"""One selection for all panes: what each pane shows for something chosen in one of them."""

from collections.abc import Iterable
from itertools import pairwise

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from stepscope.base.arrays import Ids, IntArray, Mask, Rows, Times
from stepscope.errors import ServeError
from stepscope.faces.page.finding_answers import events_of_finding
from stepscope.faces.page.requests import Query
from stepscope.faces.page.selection import longest_of_each
from stepscope.faces.page.timeline_answers import Hits, Place, event_of, hits, in_step_of
from stepscope.faces.page.trace_view import TraceView
from stepscope.facts.timeline.chosen_events import (
    Marks,
    frames_of_line,
    modules_of_line,
    of_line,
    of_modules,
    of_name,
)
from stepscope.facts.timeline.event_index import Index
from stepscope.facts.timeline.operation_labels import short_name
from stepscope.facts.timeline.source_lines import frame_place, module_places, nearest_frames

_MAX_ROWS = 50  # of each pane; chosen: more marks than anybody looks at


class Line(msgspec.Struct):
    """A source line."""

    file: str
    line: int


class Selects(msgspec.Struct):
    """What the panes mark, each by time and at most 50."""

    modules: list[int]  # ids
    kernels: list[str]  # names as recorded
    lines: list[Line]


class Selected(Selects, kw_only=True):
    """What the panes show for a selection; modules, kernels and lines are by time, at most 50."""

    title: str  # of what is chosen
    total: int  # number of its events
    # its longest operation, in the step on screen if it has one there; null if it has no event in a step
    target: Place | None
    levels: list[Hits] | UnsetType = UNSET  # hits in the levels on screen; a single file has none


def select(view: TraceView, query: Query) -> Selected:
    """What the panes show for a module, a kernel, a source line, a finding or an event.

    Query:
        module: id of a module.
        kernel: name of a kernel as recorded.
        file: a source file, with `line`.
        line: a line of `file`.
        finding: id of a finding.
        place: one row of the finding's evidence; by default all of it.
        event: id of an event.
        path: of the level on screen.
        every: 1 if all threads and streams are on screen.
        bare: 1 to leave out hits.
    """
    title, chosen, heads = _chosen(view, query)
    rows = np.flatnonzero(chosen)
    (panes,) = panes_of_each(view, np.zeros(len(rows), np.int64), rows, 1)
    return Selected(
        title=title,
        total=len(rows),
        target=_target(view, query, heads),
        levels=UNSET if query.flag("bare") else hits(view, query, Marks(view.timeline.index, chosen)),
        **asdict(panes),
    )


def panes_of_each(view: TraceView, of: Ids, rows: Rows, count: int, most: int = _MAX_ROWS) -> list[Selects]:
    """Modules, kernels and lines of each of several sets of events, each by time and at most `most`.

    Events are ascending in each set, and `of` has the set of each, 0 to `count` - 1, ascending.
    """
    events, index = view.trace.events, view.timeline.index
    names = events.text("name")
    time = np.where(index.on_device[rows], events["duration_ns"][rows], events["self_ns"][rows])
    module, work = events["module"][rows], events["kind"][rows] >= 0
    modules = _by_time(of, module, time, module >= 0, count, most)
    kernels = _by_time(of, names.codes[rows], time, work, count, most)
    lines = _lines(index, modules)
    for number, of_frames in _lines_of_frames(view, of, rows, time, lines).items():
        lines[number] = of_frames
    return [
        Selects(modules_of, [names.values[code] for code in kernels_of], lines_of[:most])
        for modules_of, kernels_of, lines_of in zip(modules, kernels, lines, strict=True)
    ]


def _chosen(view: TraceView, query: Query) -> tuple[str, Mask, Rows]:
    """Title, events, and the events that represent the selection in a timeline."""
    module, kernel, file = query.number("module"), query.text("kernel"), query.text("file")
    if module is not None:
        return _of_module(view, module)
    if kernel:
        chosen = of_name(view.timeline.index, kernel)
        return short_name(kernel), chosen, np.flatnonzero(chosen)
    if file:
        return _of_line(view, file, query.number("line") or 0)
    finding = query.number("finding")
    if finding is not None:
        title, chosen = events_of_finding(view, query, finding)
        return title, chosen, np.flatnonzero(chosen)
    event = event_of(view, query)
    chosen = np.zeros(len(view.trace.events), np.bool_)
    chosen[event] = True
    return short_name(view.trace.events.text("name")[event] or ""), chosen, np.array([event])


def _of_module(view: TraceView, module: int) -> tuple[str, Mask, Rows]:
    modules, index = view.trace["modules"], view.timeline.index
    if module >= len(modules):
        raise ServeError(f"expected a module below {len(modules)}, found {module}", 404)
    chosen = of_modules(index, {module})
    calls = np.flatnonzero(index.is_call & (index.events["module"] == module))
    title = modules.text("path")[module] or modules.text("class")[module] or "model"
    return title, chosen, calls if len(calls) else np.flatnonzero(chosen)


def _of_line(view: TraceView, file: str, line: int) -> tuple[str, Mask, Rows]:
    index = view.timeline.index
    chosen, frames = of_line(index, file, line), frames_of_line(index, file, line)
    modules = sorted(modules_of_line(index, file, line))
    calls = np.flatnonzero(index.is_call & np.isin(index.events["module"], modules))
    heads = np.concatenate([calls, frames])
    title = f"{file.rpartition('/')[2]}:{line}"
    return title, chosen, heads if len(heads) else np.flatnonzero(chosen)


def _target(view: TraceView, query: Query, heads: Rows) -> Place | None:
    """The longest event that represents a selection, in the step on screen if possible."""
    events = view.trace.events
    heads = heads[events["step"][heads] >= 0]
    if not len(heads):
        return None
    on_screen = heads[in_step_of(view, query, heads)]
    candidates = on_screen if len(on_screen) else heads
    event = int(candidates[events["duration_ns"][candidates].argmax()])
    path = _as_module(view, query, view.timeline.path_of(event))
    return Place(event, path, path.rpartition("/")[0])


def _as_module(view: TraceView, query: Query, path: str) -> str:
    """A path cut at the call of the requested module, if it leads through one."""
    module, parts = query.number("module"), path.split("/")
    if module is None:
        return path
    for depth in range(len(parts), 0, -1):
        level, row = view.timeline.find("/".join(parts[:depth]))
        if level.operations[row].module == module:
            return "/".join(parts[:depth])
    return path


def _by_time(of: Ids, codes: IntArray, time: Times, chosen: Mask, count: int, most: int) -> list[list[int]]:
    """The distinct codes of each set, those that take most time first."""
    of, codes, time = of[chosen], codes[chosen].astype(np.int64), time[chosen]
    stride = int(codes.max(initial=0)) + 1
    pairs, total = _totals(of * stride + codes, time)
    order = np.lexsort((-total, pairs // stride))  # stable: of equals the lower code first
    found = (pairs[order] % stride).tolist()
    bounds = np.searchsorted(pairs // stride, np.arange(count + 1)).tolist()
    return [found[first : min(end, first + most)] for first, end in pairwise(bounds)]


def _totals(codes: Ids, time: Times) -> tuple[Ids, Times]:
    """The distinct codes, ascending, and the time of each; sorted only where they are far apart."""
    if int(codes.max(initial=0)) < 2 * len(codes):
        found = np.flatnonzero(np.bincount(codes))
        return found, np.bincount(codes, time)[found]
    found, of = np.unique(codes, return_inverse=True)
    return found, np.bincount(of, time, len(found))


def _lines(index: Index, modules: list[list[int]]) -> list[list[Line]]:
    distinct = {module for some in modules for module in some}
    lines = {
        module: Line(place.file, place.line)
        for module in distinct
        for place in module_places(index, module)[:1]
    }
    return [_distinct(lines[module] for module in some if module in lines) for some in modules]


def _lines_of_frames(
    view: TraceView, of: Ids, rows: Rows, time: Times, lines: list[list[Line]]
) -> dict[int, list[Line]]:
    """The frames around the longest events of each set whose modules have no known line."""
    missing = np.array([not some for some in lines], np.bool_)[of]
    of, rows, time = of[missing], rows[missing], time[missing]
    if not len(rows):
        return {}
    longest = longest_of_each(of, time, _MAX_ROWS)
    frames = nearest_frames(view.timeline.index, rows[longest])
    names = view.trace.events.text("name")
    lines_of: dict[int, list[Line]] = {}
    for number, frame in zip(of[longest].tolist(), frames.tolist(), strict=True):
        if frame >= 0:
            place = frame_place(names[frame] or "")
            lines_of.setdefault(number, []).extend([Line(place.file, place.line)] if place else [])
    return {number: _distinct(some) for number, some in lines_of.items()}


def _distinct(lines: Iterable[Line]) -> list[Line]:
    return list({(line.file, line.line): line for line in lines}.values())[:_MAX_ROWS]
