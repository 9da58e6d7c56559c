"""One selection for all panes: what each pane shows for something chosen in one of them."""

from __future__ import annotations

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from stepscope.arrays import IntArray, Mask, Rows, Times
from stepscope.errors import ServeError
from stepscope.serve.finding_answers import events_of_finding
from stepscope.serve.request_parameters import Query
from stepscope.serve.timeline_answers import Hits, Place, event_of, hits, in_step_of
from stepscope.serve.trace_view import TraceView
from stepscope.timeline.known_lines import frames_around, module_places
from stepscope.timeline.operation_labels import short_name
from stepscope.timeline.selected_events import (
    frames_of_line,
    modules_of_line,
    of_line,
    of_modules,
    of_name,
)

_MAX_ROWS = 50


class Line(msgspec.Struct):
    """A source line."""

    file: str
    line: int


class Selects(msgspec.Struct):
    """What the panes mark, each by time and at most 50.

    Attributes:
        modules: ids.
        kernels: names as recorded.
    """

    modules: list[int]
    kernels: list[str]
    lines: list[Line]


class Selected(Selects, kw_only=True):
    """What the panes show for a selection; modules, kernels and lines are by time, at most 50.

    Attributes:
        title: of what is chosen.
        total: number of its events.
        target: its longest operation, in the step on screen if it has one there; null if it has
            no event in a step.
        levels: hits in the levels on screen; a single file has none.
        modules: ids.
        kernels: names as recorded.
    """

    title: str
    total: int
    target: Place | None
    levels: list[Hits] | UnsetType = UNSET


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
    """
    title, chosen, heads = _chosen(view, query)
    rows = np.flatnonzero(chosen)
    panes = panes_of(view, rows)
    return Selected(
        title=title,
        total=len(rows),
        target=_target(view, query, rows, heads),
        levels=hits(view, query, view.timeline.marks(chosen)),
        modules=panes.modules,
        kernels=panes.kernels,
        lines=panes.lines,
    )


def panes_of(view: TraceView, rows: Rows) -> Selects:
    """Modules, kernels and lines of some events (ids), each by time."""
    modules = _modules(view, rows)
    return Selects(modules, _kernels(view, rows), _lines(view, rows, modules))


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
    name = short_name(view.trace.events.text("name")[event] or "")
    return name, chosen, np.array([event])


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


def _target(view: TraceView, query: Query, rows: Rows, heads: Rows) -> Place | None:
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


def _time(view: TraceView, rows: Rows) -> Times:
    """Duration of device work, self time of CPU events, ns."""
    events, index = view.trace.events, view.timeline.index
    return np.where(index.on_device[rows], events["duration_ns"][rows], events["self_ns"][rows])


def _modules(view: TraceView, rows: Rows) -> list[int]:
    module = view.trace.events["module"][rows]
    known = module >= 0
    return _by_time(module[known], _time(view, rows[known]))


def _kernels(view: TraceView, rows: Rows) -> list[str]:
    events = view.trace.events
    work = rows[events["kind"][rows] >= 0]
    names = events.text("name")
    return [names.values[code] for code in _by_time(names.codes[work], _time(view, work))]


def _by_time(codes: IntArray, time: Times) -> list[int]:
    """Distinct codes, those that take most time first."""
    if not len(codes):
        return []
    total, found = np.bincount(codes, time), np.bincount(codes) > 0
    distinct = np.flatnonzero(found)
    return [int(code) for code in distinct[np.argsort(-total[found], kind="stable")[:_MAX_ROWS]]]


def _lines(view: TraceView, rows: Rows, modules: list[int]) -> list[Line]:
    """Where the modules are called; if unknown, the frames around the longest events."""
    index = view.timeline.index
    places = [place for module in modules for place in module_places(index, module)[:1]]
    if not places:
        longest = rows[np.argsort(-_time(view, rows), kind="stable")[:_MAX_ROWS]]
        places = [place for event in longest.tolist() for place in frames_around(index, event)[:1]]
    lines = dict.fromkeys((place.file, place.line) for place in places)
    return [Line(file, line) for file, line in list(lines)[:_MAX_ROWS]]
