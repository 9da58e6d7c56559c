"""Answers about source files: which there are, and what their lines cost."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stepscope.serve.opened import OpenTrace
from stepscope.serve.query import Query
from stepscope.timeline.lines import PHASES, LineCost

_MS = 1e-6


def sources(opened: OpenTrace, query: Query) -> dict[str, Any]:
    """The files that the trace names, with what their costliest line costs."""
    costs, steps = opened.line_costs(opened.rank_of(query), query.number("step"))
    by_file: dict[str, list[LineCost]] = {}
    for one in costs:
        by_file.setdefault(one.place.file, []).append(one)
    files = [_file(opened, name, lines, steps) for name, lines in by_file.items()]
    files.sort(key=lambda file: (not file["readable"], -max(file["cpu_ms"], file["device_ms"])))
    return {"files": files}


def source(opened: OpenTrace, query: Query) -> dict[str, Any]:
    """One file: its text, and what its lines cost."""
    name = query.text("file")
    found = opened.sources.read(name)
    costs, steps = opened.line_costs(opened.rank_of(query), query.number("step"))
    longest = max((_longer_side(one) for one in costs), default=1) or 1
    lines = [_line(one, steps, longest) for one in costs if one.place.file == name]
    return {
        "file": name,
        "readable": found.text is not None,
        "reason": found.reason,
        "text": found.text,
        "changed": found.changed,
        "lines": sorted(lines, key=lambda one: one["line"]),
    }


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


def _line(one: LineCost, steps: int, longest: int) -> dict[str, Any]:
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
        "share": _longer_side(one) / longest,
        "calls": one.calls / steps,
        "modules": one.modules,
    }


def _longer_side(one: LineCost) -> int:
    return max(sum(one.cpu_ns), sum(one.device_ns))
