"""CUDA graphs as they were captured: the operator, module, stage and lines of each of their nodes.

A capture shows launch calls that start no work; a replay shows work that one call starts. What is
known of captures is a property of the trace, whether it is from the trace itself or from another.

Source: `kernel` among the arguments of HIP's launch calls (roctracer in libkineto).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from msgspec import Struct, to_builtins

from stepscope.base.arrays import Codes8, Ids, Ids32
from stepscope.base.typed_data import convert
from stepscope.facts.annotate.links.launches import is_graph_launch, launch_calls
from stepscope.facts.annotate.range_names import has_lines, parse_lines
from stepscope.trace.frame_name import FrameName, is_users_frame
from stepscope.trace.nesting import inherit
from stepscope.trace.trace import Trace

CAPTURED = "captured_graphs"  # property of a trace: what is known of captures
_BEGIN = re.compile(r"^(cu|cuda|hip)StreamBeginCapture")
_END = re.compile(r"^(cu|cuda|hip)StreamEndCapture")
_NO_WORK = re.compile(r"HostFunc|Callback")  # runs on the CPU
_UNKNOWN = -1


class CapturedNode(NamedTuple):
    """A node of a graph; empty is unknown."""

    kind: int  # of its work, as `launch_calls` counts them
    kernel: str = ""
    operator: str = ""
    module: str | None = ""  # None where captures that fit differ
    stage: str = ""
    frame: int = _UNKNOWN  # the innermost, of `Captures.frames`


CapturedFrame = tuple[int, str, int, str]  # the user's frame around it, file, line, function


class Captures(Struct):
    """Graphs in order of capture, each the positions of its nodes among the distinct `nodes`."""

    graphs: list[list[int]] = []
    nodes: list[CapturedNode] = []
    frames: list[CapturedFrame] = []
    classes: dict[str, str] = {}  # of modules, by path


def with_captures(trace: Trace, captures: Captures) -> Trace:
    """The trace with what is known of captures, for `captures_of`."""
    return trace.with_metadata(properties={**trace.metadata.properties, CAPTURED: to_builtins(captures)})


def captures_of(trace: Trace) -> Captures:
    """What is known of the captures of a trace."""
    return convert(trace.metadata.properties.get(CAPTURED, {}), Captures)


def capture_of(trace: Trace) -> Ids:
    """The number of the capture that each event begins in, any thread's, -1 for none, shape (events,).

    An end without a begin is of a capture that the recording began in. A capture within another, as
    of the body of a conditional node, has a number of its own.
    """
    names = trace.events.text("name")
    begins, ends = (names.where(lambda name, of=of: bool(of.match(name))) for of in (_BEGIN, _END))  # type: ignore[misc]
    change = begins.astype(np.int64) - ends
    count = -int(np.cumsum(change).min(initial=0))
    marks, running = np.flatnonzero(change), list(range(count))
    innermost = [running[-1] if running else _UNKNOWN]
    for begin in begins[marks].tolist():
        if begin:
            running.append(count)
            count += 1
        else:
            running.pop()
        innermost.append(running[-1] if running else _UNKNOWN)
    return np.repeat(innermost, np.diff(marks, prepend=0, append=len(change)))


def recorded_captures(trace: Trace) -> Captures:
    """The graphs whose capture an annotated trace shows; none in most traces."""
    capture, frames, numbers = capture_of(trace), _Frames(trace), dict[CapturedNode, int]()
    graphs: dict[int, list[int]] = {}
    calls, kinds = _without_work(trace)
    inside = capture[calls] >= 0
    nodes = _nodes(trace, calls[inside], kinds[inside], frames)
    for graph, node in zip(capture[calls[inside]].tolist(), nodes, strict=True):
        graphs.setdefault(graph, []).append(numbers.setdefault(node, len(numbers)))
    columns = (map(str, trace["modules"].text(column)) for column in ("path", "class"))
    in_order = [graphs[graph] for graph in sorted(graphs)]
    return Captures(in_order, [*numbers], [*frames.numbers], dict(zip(*columns, strict=True)))


def _without_work(trace: Trace) -> tuple[Ids, Codes8]:
    """Launch calls that start no work, and the kind of work that they name."""
    calls, kinds = launch_calls(trace)
    names = trace.events.text("name")
    idle = ~np.isin(calls, trace["launches"]["cpu_event"])
    idle &= ~names.where(lambda name: is_graph_launch(name) or bool(_NO_WORK.search(name)))[calls]
    return calls[idle], kinds[idle]


def _nodes(trace: Trace, calls: Ids, kinds: Codes8, frames: _Frames) -> Iterator[CapturedNode]:
    events = trace.events
    names, paths, stages = events.text("name"), trace["modules"].text("path"), events.text("stage")
    is_operator = events.text("category").mask("cpu_op")
    operator = inherit(events["parent"], np.where(is_operator, events["id"], _UNKNOWN))[calls]
    columns = calls.tolist(), kinds.tolist(), operator.tolist(), events["module"][calls].tolist()
    for row, kind, around, module, arguments in zip(*columns, trace.arguments_of(calls), strict=True):
        kernel, name = str(arguments.get("kernel", "")), names[around] if around >= 0 else ""
        path, stage = paths[module] if module >= 0 else "", stages[row] or ""
        stage = "forward" if path and stage in ("", "other") else stage  # a capture is no step
        yield CapturedNode(kind, kernel, name or "", path or "", stage, frames.of(row))


class _Frames:
    """The user's Python frames, or recorded lines, around calls; of backward those of forward."""

    def __init__(self, trace: Trace) -> None:
        self.numbers: dict[CapturedFrame, int] = {}
        self._parent, self._names = trace.events["parent"], trace.events.text("name")
        self._forward: Ids32 = inherit(self._parent, trace.events["forward_event"])
        self._around: dict[int, int] = {_UNKNOWN: _UNKNOWN}

    def of(self, row: int) -> int:
        """The innermost frame around a call, -1 if unknown."""
        frame = self._innermost(int(self._forward[row]))
        return frame if frame >= 0 else self._innermost(row)

    def _innermost(self, row: int) -> int:
        path = []
        while row not in self._around:
            path.append(row)
            row = int(self._parent[row])
        frame = self._around[row]
        for inside in reversed(path):
            frame = self._around[inside] = self._below(frame, self._names[inside] or "")
        return frame

    def _below(self, frame: int, name: str) -> int:
        places: list[tuple[str, int, str]] = []
        if has_lines(name):  # all lines that led here
            frame, places = _UNKNOWN, [(file, line, "") for file, line in parse_lines(name)]
        elif is_users_frame(name) and (called := FrameName.of(name)):
            places = [called]
        for place in places:
            frame = self.numbers.setdefault((frame, *place), len(self.numbers))
        return frame
