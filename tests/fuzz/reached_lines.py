"""Which lines of the sources an input reaches that none before it did."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import stepscope

PACKAGE = Path(stepscope.__file__).parent
_TOOL = 4  # of sys.monitoring: not used by debuggers, coverage or profilers


def files_of(sources: tuple[str, ...]) -> list[Path]:
    """The Python files of some files and folders of the package."""
    places = [PACKAGE / source for source in sources]
    return sorted(file for place in places for file in (place.rglob("*.py") if place.is_dir() else [place]))


def lines_of(file: Path) -> set[tuple[str, int]]:
    """The lines of a file's functions that can run."""
    whole = compile(file.read_text("utf-8"), str(file), "exec")
    return {
        (str(file), line)
        for code in _functions(whole)
        for *_, line in code.co_lines()
        if line and line != code.co_firstlineno
    }


def _functions(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _functions(constant)


class ReachedLines:
    """Counts each line once and, from Python 3.12 on, each direction of a branch.

    What was counted costs nothing there; before, functions with lines left to reach run slowly.

    Attributes:
        lines: reached so far.
        count: lines and directions of branches.
    """

    def __init__(self) -> None:
        self.lines: set[tuple[str, int]] = set()
        self.count = 0
        self._targets: dict[tuple[CodeType, int], set[int]] = {}
        self._off: Any = None
        monitoring: Any = getattr(sys, "monitoring", None)
        if monitoring is None:
            self._left: dict[CodeType, set[int]] = {}
            sys.settrace(self._called)
            return
        self._off = monitoring.DISABLE
        events = monitoring.events
        monitoring.use_tool_id(_TOOL, "stepscope-fuzz")
        monitoring.register_callback(_TOOL, events.LINE, self._line)
        monitoring.register_callback(_TOOL, events.BRANCH, self._branch)
        monitoring.set_events(_TOOL, events.LINE | events.BRANCH)

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(str(PACKAGE)):
            return None
        left = self._left.setdefault(code, {line for *_, line in code.co_lines() if line})

        def reach(frame: FrameType, event: str, argument: Any) -> Any:
            if frame.f_lineno in left:
                left.discard(frame.f_lineno)
                self._line(code, frame.f_lineno)
            return reach

        return reach if left else None

    def _line(self, code: CodeType, line: int) -> Any:
        if code.co_filename.startswith(str(PACKAGE)):
            self.lines.add((code.co_filename, line))
            self.count += 1
        return self._off

    def _branch(self, code: CodeType, offset: int, target: int) -> Any:
        if not code.co_filename.startswith(str(PACKAGE)):
            return self._off
        seen = self._targets.setdefault((code, offset), set())
        self.count += target not in seen
        seen.add(target)
        return self._off if len(seen) > 1 else None  # both directions share one switch
