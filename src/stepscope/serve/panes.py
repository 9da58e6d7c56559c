"""One selection for all panes: what each shows when something is chosen in one of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.errors import ServeError
from stepscope.serve.findings import of_finding
from stepscope.serve.levels import event_of, hits, in_step_of
from stepscope.serve.opened import OpenTrace
from stepscope.serve.query import Query
from stepscope.timeline.chosen import (
    frames_of_line,
    modules_of_line,
    of_line,
    of_modules,
    of_name,
)
from stepscope.timeline.index import Mask
from stepscope.timeline.names import short_name
from stepscope.timeline.places import frames_around, module_places

Rows = NDArray[np.intp]
_MOST = 50


def select(opened: OpenTrace, query: Query) -> dict[str, Any]:
    """What the panes show for a module, a kernel, a source line, a finding or an event."""
    title, chosen, heads = _chosen(opened, query)
    rows = np.flatnonzero(chosen)
    return {
        "title": title,
        "total": len(rows),
        "target": _target(opened, query, rows, heads),
        "levels": hits(opened, query, opened.timeline.marks(chosen)),
        **panes(opened, rows),
    }


def panes(opened: OpenTrace, rows: Rows) -> dict[str, Any]:
    """Modules, kernels and lines of some events, each by the time that they take.

    Args:
        opened: the trace.
        rows: event ids.
    """
    modules = _modules(opened, rows)
    return {
        "modules": modules,
        "kernels": _kernels(opened, rows),
        "lines": _lines(opened, rows, modules),
    }


def _chosen(opened: OpenTrace, query: Query) -> tuple[str, Mask, Rows]:
    """What is chosen, its events, and those of them that stand for it in a timeline."""
    module, kernel, file = query.number("module"), query.text("kernel"), query.text("file")
    if module is not None:
        return _of_module(opened, module)
    if kernel:
        chosen = of_name(opened.timeline.index, kernel)
        return short_name(kernel), chosen, np.flatnonzero(chosen)
    if file:
        return _of_line(opened, file, query.number("line") or 0)
    finding = query.number("finding")
    if finding is not None:
        title, chosen = of_finding(opened, query, finding)
        return title, chosen, np.flatnonzero(chosen)
    event = event_of(opened, query)
    chosen = np.zeros(len(opened.trace.events), np.bool_)
    chosen[event] = True
    name = short_name(opened.trace.events.text("name")[event] or "")
    return name, chosen, np.array([event])


def _of_module(opened: OpenTrace, module: int) -> tuple[str, Mask, Rows]:
    modules, index = opened.trace["modules"], opened.timeline.index
    if module >= len(modules):
        raise ServeError(f"expected a module below {len(modules)}, found {module}", 404)
    chosen = of_modules(index, {module})
    calls = np.flatnonzero(index.is_call & (index.events["module"] == module))
    title = modules.text("path")[module] or modules.text("class")[module] or "model"
    return title, chosen, calls if len(calls) else np.flatnonzero(chosen)


def _of_line(opened: OpenTrace, file: str, line: int) -> tuple[str, Mask, Rows]:
    index = opened.timeline.index
    chosen, frames = of_line(index, file, line), frames_of_line(index, file, line)
    modules = sorted(modules_of_line(index, file, line))
    calls = np.flatnonzero(index.is_call & np.isin(index.events["module"], modules))
    heads = np.concatenate([calls, frames])
    title = f"{file.rpartition('/')[2]}:{line}"
    return title, chosen, heads if len(heads) else np.flatnonzero(chosen)


def _target(opened: OpenTrace, query: Query, rows: Rows, heads: Rows) -> dict[str, Any] | None:
    """The longest of the events that stand for a selection, in the step on screen if it can be."""
    events = opened.trace.events
    heads = heads[events["step"][heads] >= 0]
    if not len(heads):
        return None
    here = heads[in_step_of(opened, query, heads)]
    among = here if len(here) else heads
    event = int(among[events["duration_ns"][among].argmax()])
    path = _as_module(opened, query, opened.timeline.path_of(event))
    return {"event": event, "path": path, "level": path.rpartition("/")[0]}


def _as_module(opened: OpenTrace, query: Query, path: str) -> str:
    """A path up to the call of the module that is asked for, where it leads through one."""
    module, parts = query.number("module"), path.split("/")
    if module is None:
        return path
    for depth in range(len(parts), 0, -1):
        level, number = opened.timeline.find("/".join(parts[:depth]))
        if level.operations[number].module == module:
            return "/".join(parts[:depth])
    return path


def _time(opened: OpenTrace, rows: Rows) -> NDArray[np.int64]:
    """Device work by its length, the rest by the time that it keeps for itself, ns."""
    events, index = opened.trace.events, opened.timeline.index
    return np.where(index.on_device[rows], events["duration_ns"][rows], events["self_ns"][rows])


def _modules(opened: OpenTrace, rows: Rows) -> list[int]:
    module = opened.trace.events["module"][rows]
    known = module >= 0
    return _by_time(module[known], _time(opened, rows[known]))


def _kernels(opened: OpenTrace, rows: Rows) -> list[str]:
    events = opened.trace.events
    work = rows[events["kind"][rows] >= 0]
    names = events.text("name")
    return [names.values[code] for code in _by_time(names.codes[work], _time(opened, work))]


def _by_time(codes: NDArray[np.integer], time: NDArray[np.int64]) -> list[int]:
    """Distinct codes, those that take most time first."""
    if not len(codes):
        return []
    total, found = np.bincount(codes, time), np.bincount(codes) > 0
    distinct = np.flatnonzero(found)
    return [int(code) for code in distinct[np.argsort(-total[found], kind="stable")[:_MOST]]]


def _lines(opened: OpenTrace, rows: Rows, modules: list[int]) -> list[dict[str, Any]]:
    """Where the modules are called from; where none is known, the frames around the longest."""
    index = opened.timeline.index
    places = [place for one in modules for place in module_places(index, one)[:1]]
    if not places:
        longest = rows[np.argsort(-_time(opened, rows), kind="stable")[:_MOST]]
        places = [place for event in longest.tolist() for place in frames_around(index, event)[:1]]
    lines = dict.fromkeys((place.file, place.line) for place in places)
    return [{"file": file, "line": line} for file, line in list(lines)[:_MOST]]
