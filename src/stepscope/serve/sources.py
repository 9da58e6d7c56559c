"""Answers about source files: which there are, and what their lines cost.

Of steps, lines are those that call modules and recorded Python frames; of collected contexts, every
line of Python on a path of calls.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stepscope.contexts import LineTotal, build_contexts, line_totals, whole_ns
from stepscope.serve.opened import OpenTrace
from stepscope.serve.query import Query
from stepscope.timeline.lines import PHASES, LineCost
from stepscope.timeline.places import Place

_MS = 1e-6


def sources(opened: OpenTrace, query: Query) -> dict[str, Any]:
    """The files that the trace names, with what their costliest line costs."""
    costs, steps = _costs(opened, query)
    by_file: dict[str, list[LineCost]] = {}
    for one in costs:
        by_file.setdefault(one.place.file, []).append(one)
    files = [_file(opened, name, lines, steps) for name, lines in by_file.items()]
    files.sort(key=lambda file: (not file["readable"], -max(file["cpu_ms"], file["device_ms"])))
    return {"files": files, "per": _per(opened, query)}


def source(opened: OpenTrace, query: Query) -> dict[str, Any]:
    """One file: its text, and what its lines cost."""
    name = query.text("file")
    found = opened.sources.read(name)
    costs, steps = _costs(opened, query)
    whole = _whole_ns(opened, query) or 1
    recorded = max(int((opened.trace["steps"]["rank"] == opened.rank_of(query)).sum()), 1)
    lines = [_line(one, steps, recorded, whole) for one in costs if one.place.file == name]
    return {
        "file": name,
        "readable": found.text is not None,
        "reason": found.reason,
        "text": found.text,
        "changed": found.changed,
        "per": _per(opened, query),
        "lines": sorted(lines, key=lambda one: one["line"]),
    }


def _per(opened: OpenTrace, query: Query) -> str:
    """Whether costs are means a step, or of the whole recording that contexts were collected in."""
    collected = len(opened.trace["contexts"]) > 0
    without_steps = not len(opened.trace["steps"])
    return "recording" if collected and (without_steps or query.flag("whole")) else "step"


def _costs(opened: OpenTrace, query: Query) -> tuple[list[LineCost], int]:
    """What each line costs, and over how many steps; those of a recording count as one."""
    if _per(opened, query) == "recording":
        return opened.keep(("lines of contexts",), lambda: _collected(opened)), 1
    if not len(opened.trace["steps"]):
        return [], 1
    return opened.line_costs(opened.rank_of(query), query.number("step"))


def _whole_ns(opened: OpenTrace, query: Query) -> int:
    """The time that lines have their share of: that of the steps, or all that was collected."""
    if _per(opened, query) == "recording":
        return max(whole_ns(build_contexts(opened.trace)))
    return opened.wall_ns(opened.rank_of(query), query.number("step"))


def _collected(opened: OpenTrace) -> list[LineCost]:
    return [_line_cost(one) for one in line_totals(build_contexts(opened.trace))]


def _line_cost(one: LineTotal) -> LineCost:
    """Contexts do not tell forward from all else that is no backward."""
    place = Place(one.file, one.line, "frame", one.function)
    cpu, device = ((0, backward, called) for called, backward in (one.cpu_ns, one.device_ns))
    return LineCost(place, [], 0, cpu, device)


def _file(opened: OpenTrace, name: str, lines: Iterable[LineCost], steps: int) -> dict[str, Any]:
    lines = list(lines)
    return {
        "file": name,
        "readable": opened.sources.is_readable(name),
        "installed": opened.sources.is_installed(name),
        "cpu_ms": max(sum(one.cpu_ns) for one in lines) * _MS / steps,
        "device_ms": max(sum(one.device_ns) for one in lines) * _MS / steps,
        "lines": len(lines),
    }


def _line(one: LineCost, steps: int, recorded: int, whole: int) -> dict[str, Any]:
    times = {
        f"{phase}_{side}_ms": times[number] * _MS / steps
        for number, phase in enumerate(PHASES)
        for side, times in (("cpu", one.cpu_ns), ("device", one.device_ns))
    }
    return {
        "line": one.place.line,
        "what": one.place.what,
        "name": one.place.name,
        **times,
        "share": _longer_side(one) / whole,
        "calls": one.calls / recorded,
        "modules": one.modules,
    }


def _longer_side(one: LineCost) -> int:
    return max(sum(one.cpu_ns), sum(one.device_ns))
