"""Source lines of compiled operations and programs, as the compiler recorded them.

A program's operations have the lines at which they were traced; an operation within a library, such
as a layer of Flax, has the user's line that called the library. A function of JAX that runs outside
`jax.jit` is a program of one operation, with the line at which it first ran.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from stepscope.annotate.jax.calls import CALL
from stepscope.annotate.jax.frames import frames_of_events, is_users
from stepscope.annotate.jax.scopes import scope_of
from stepscope.arrays import Ids, Ids32
from stepscope.trace.arguments import parse
from stepscope.trace.nesting import inherit
from stepscope.trace.trace import Trace

_FRAMEWORKS = ("jax", "xla")


class CompiledLine(NamedTuple):
    """A line of a file; `-1` and empty if unknown."""

    file: str = ""
    number: int = -1


class CompiledSources:
    """The lines of the compiled operations of a trace; of none in a trace without programs."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._compiled = trace.metadata.framework in _FRAMEWORKS

    def line(self, event: int) -> CompiledLine:
        """The line of a compiled operation, or of the program whose call an event is in."""
        if not self._compiled:
            return CompiledLine()
        own = _line(self._trace.event_arguments(event).get("source"))
        if not is_users(own.file):
            own = self._of_users[self._frame[event]] or own
        return own if own.file else self._programs.get(self.program(event), CompiledLine())

    def program(self, event: int) -> str:
        """The compiled function whose call an event is part of, empty if none."""
        call = int(self._call[event]) if self._compiled else -1
        found = CALL.match(self._trace.events.text("name")[call] or "") if call >= 0 else None
        return found[1] if found else ""

    @cached_property
    def _frame(self) -> Ids:
        """The frame at which each event was traced, -1 if unknown."""
        return frames_of_events(self._trace)

    @cached_property
    def _of_users(self) -> list[CompiledLine | None]:
        """The user's line in or around each frame; and last None, for what has no frame."""
        frames = self._trace["frames"]
        lines, parents = frames["line"].tolist(), frames["parent"].tolist()
        result: list[CompiledLine | None] = []
        for file, line, above in zip(frames.text("file"), lines, parents, strict=True):
            around = result[above] if above >= 0 else None
            result.append(CompiledLine(file, line) if file and is_users(file) else around)
        return [*result, None]

    @cached_property
    def _call(self) -> Ids32:
        """The innermost call of a compiled function around each event, -1 if none."""
        events = self._trace.events
        calls = events.text("name").where(lambda name: bool(CALL.match(name)))
        return inherit(events["parent"], np.where(calls, events["id"], -1))

    @cached_property
    def _programs(self) -> dict[str, CompiledLine]:
        """The first line of each program: in the function itself, else of the user's that it runs.

        A program of JAX's own has the first line in the file that most of its operations are from.
        """
        lines = self._lines_of_programs()
        inside = self._lines_by_function
        return {name: _first(inside.get(name) or found) for name, found in lines.items()}

    def _lines_of_programs(self) -> dict[str, Counter[CompiledLine]]:
        events = self._trace.events
        rows = np.flatnonzero(events.text("category").mask("cpu_op", "kernel"))
        rows = rows[np.argsort(events["source"][rows])]
        lines: dict[str, Counter[CompiledLine]] = {}
        scopes = events.text("scope")
        texts = self._trace.arguments.texts(events["source"][rows])
        for row, found in zip(rows.tolist(), map(parse, texts), strict=True):
            line = _line(found.get("source"))
            if not is_users(line.file):
                line = self._of_users[self._frame[row]] or line
            if line.file:
                lines.setdefault(_program(found, scopes[row]), Counter())[line] += 1
        return lines

    @cached_property
    def _lines_by_function(self) -> dict[str, Counter[CompiledLine]]:
        """The lines of the user's functions in which operations were traced, by their names."""
        frames = self._trace["frames"]
        result: dict[str, Counter[CompiledLine]] = {}
        columns = zip(frames.text("function"), frames.text("file"), frames["line"], strict=True)
        for function, file, line in columns:
            if file and is_users(file):
                name = (function or "").rpartition(".")[2]
                result.setdefault(name, Counter())[CompiledLine(file, int(line))] += 1
        return result


def _program(arguments: Mapping[str, Any], scope: str | None) -> str:
    """The program of an operation, by its module in XLA, else by its scope."""
    module = str(arguments.get("hlo_module", ""))
    return module.removeprefix("jit_") if module else scope_of(scope or "").program


def _first(lines: Counter[CompiledLine]) -> CompiledLine:
    """The first line in the file with most of them, the user's before others."""
    users = Counter({line: count for line, count in lines.items() if is_users(line.file)})
    files: Counter[str] = Counter()
    for line, count in (users or lines).items():
        files[line.file] += count
    ((file, _),) = files.most_common(1)
    return min(line for line in lines if line.file == file)


def _line(source: object) -> CompiledLine:
    file, _, number = str(source or "").rpartition(":")
    return (
        CompiledLine(file, int(number)) if number.isascii() and number.isdigit() else CompiledLine()
    )
