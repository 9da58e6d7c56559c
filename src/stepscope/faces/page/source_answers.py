"""Answers about source files: which files there are, and what their lines cost.

For steps, lines are those that call modules, and recorded Python frames. For collected contexts,
lines are every line of Python on a call path.
"""

from typing import Literal

import msgspec

from stepscope.faces.page.requests import Query, filled
from stepscope.faces.page.trace_view import TraceView
from stepscope.facts.contexts import line_totals, whole_ns
from stepscope.facts.timeline.source_lines import LineCost

_MS = 1e-6  # of a nanosecond
_TIMES = ("cpu", "own_cpu", "device", "own_device", "backward_cpu", "backward_device")
Per = Literal["step", "recording"]


class SourceFile(msgspec.Struct):
    """A source file that the trace names."""

    file: str  # as recorded
    readable: bool  # whether its text can be read
    cpu_ms: float  # CPU time of its costliest line
    device_ms: float  # device time of its costliest line


class Sources(msgspec.Struct):
    """The source files: first those that can be read, the user's before libraries', by cost."""

    files: list[SourceFile]
    per: Per  # what times are of: mean a step, or the whole recording


class SourceLine(msgspec.Struct):
    """Cost of a line; a line may have several rows."""

    line: int
    what: str  # `call` of a module, `class` of a module, or a Python `frame`
    name: str  # of the module, the class or the function
    cpu_ms: float  # time in which the line, or anything it calls, runs on a CPU
    own_cpu_ms: float  # CPU time that belongs to no deeper line
    device_ms: float  # device busy time of what it launches, through deeper lines too
    own_device_ms: float  # device busy time of what it launches itself
    backward_cpu_ms: float  # CPU time of the backward of what it calls, which another line starts
    backward_device_ms: float  # device busy time of the same
    share: float  # of the time of the steps, on the longer side of the line; at most 1
    calls: float  # mean a step
    modules: list[int]  # ids of the modules that it calls or defines


class Source(msgspec.Struct):
    """A source file and the costs of its lines."""

    file: str  # as recorded
    reason: str  # why there is no text, else empty
    text: str | None  # null if it cannot be read
    changed: bool  # whether the file is newer than the recording
    per: Per  # what times are of: mean a step, or the whole recording
    lines: list[SourceLine]


def sources(view: TraceView, query: Query) -> Sources:
    """The files that the trace names, with the cost of their costliest line.

    Query:
        rank: by default the rank of `start`.
        step: number of one step; by default means over all steps except warm-up.
        whole: 1 for the whole recording, if contexts were collected.
    """
    costs, steps, _ = _costs(view, query)
    by_file: dict[str, list[LineCost]] = {}
    for cost in costs:
        by_file.setdefault(cost.place.file, []).append(cost)
    files = [_file(view, name, lines, steps) for name, lines in by_file.items()]
    installed = view.sources.is_installed
    files.sort(key=lambda one: (not one.readable, installed(one.file), -max(one.cpu_ms, one.device_ms)))
    return Sources(files, _per(view, query))


def source(view: TraceView, query: Query) -> Source:
    """One file that the trace names: its text, and the costs of its lines.

    Query:
        file: as recorded.
        rank: by default the rank of `start`.
        step: number of one step; by default means over all steps except warm-up.
        whole: 1 for the whole recording, if contexts were collected.
    """
    name = query.text("file")
    text = view.sources.read(name)
    costs, steps, whole = _costs(view, query)
    recorded = max(int((view.trace["steps"]["rank"] == view.rank_of(query)).sum()), 1)
    lines = [_line(cost, steps, recorded, whole or 1) for cost in costs if cost.place.file == name]
    in_order = sorted(lines, key=lambda line: line.line)
    return filled(Source, text, file=name, per=_per(view, query), lines=in_order)


def _per(view: TraceView, query: Query) -> Per:
    collected = len(view.trace["contexts"]) > 0
    without_steps = not len(view.trace["steps"])
    return "recording" if collected and (without_steps or query.flag("whole")) else "step"


def _costs(view: TraceView, query: Query) -> tuple[list[LineCost], int, int]:
    """Cost of each line, over how many steps, and the time that shares are of; a recording is one step."""
    if _per(view, query) == "recording":
        tree = view.contexts(None, None)
        return view.cached(("lines of contexts",), lambda: line_totals(tree)), 1, max(whole_ns(tree))
    if not len(view.trace["steps"]):
        return [], 1, 1
    rank, step = view.rank_of(query), query.number("step")
    return *view.line_costs(rank, step), view.selected(rank, step).length_ns


def _file(view: TraceView, name: str, lines: list[LineCost], steps: int) -> SourceFile:
    return SourceFile(
        file=name,
        readable=view.sources.is_readable(name),
        cpu_ms=max(line.cpu_ns for line in lines) * _MS / steps,
        device_ms=max(line.device_ns for line in lines) * _MS / steps,
    )


def _line(cost: LineCost, steps: int, recorded: int, whole: int) -> SourceLine:
    return filled(
        SourceLine,
        cost.place,
        **{f"{name}_ms": getattr(cost, f"{name}_ns") * _MS / steps for name in _TIMES},
        share=max(cost.cpu_ns, cost.device_ns) / whole,
        calls=cost.calls / recorded,
        modules=cost.modules,
    )
