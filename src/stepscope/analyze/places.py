"""Where in the user's program events come from: module, and the line where the trace tells one."""

from __future__ import annotations

import re
import sys
from functools import cached_property
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from stepscope.analyze.finding import Place
from stepscope.annotate.launches import launch_of
from stepscope.annotate.lines import LINES_RANGE, parse_lines
from stepscope.annotate.marks import MODULE_RANGE
from stepscope.trace.frame_name import FrameName
from stepscope.trace.nesting import inherit
from stepscope.trace.trace import Trace

Rows = NDArray[np.integer]
_LIBRARY = re.compile(
    r"(^|/)(torch|torchvision|stepscope|site-packages|dist-packages|lib/python3)/"
)
_ENGINE = "autograd::engine::evaluate_function: "
_MOST_EVENTS = 100_000


class Places:
    """Finds the place of any event of a trace; made once, asked often."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._names = trace.events.text("name")

    def of(
        self, rows: Rows, steps: int, calls: NDArray[np.float64] | None = None
    ) -> tuple[Place, ...]:
        """Events grouped by name, stage, module and line, those with the most time first.

        Args:
            rows: events.id.
            steps: how many steps they are of, for counts and times a step.
            calls: how many calls each event stands for; by default one.
        """
        rows = np.asarray(rows)
        events = self._trace.events
        frame = self._frame[rows]
        code = np.where(frame >= 0, events["name"][frame], -1)
        keys = (self._name[rows], events["stage"][rows], events["module"][rows], code)
        key = np.stack([column.astype(np.int64) for column in keys], axis=1)
        groups, number = np.unique(key, axis=0, return_inverse=True)
        number = number.reshape(-1)
        time = np.bincount(number, events["duration_ns"][rows], len(groups)) / 1e6 / steps
        weight = None if calls is None else calls[rows]
        count = np.bincount(number, weight, len(groups)) / steps
        order = np.argsort(number, kind="stable")
        parts = np.split(rows[order], np.cumsum(np.bincount(number))[:-1]) if len(rows) else []
        places = [
            self._place(part, float(time[index]), float(count[index]))
            for index, part in enumerate(parts)
        ]
        return tuple(sorted(places, key=lambda place: -place.ms))

    def _place(self, rows: Rows, ms: float, count: float) -> Place:
        first = int(rows[0])
        module = int(self._trace.events["module"][first])
        file, line, function = self.line(first)
        return Place(
            name=self._names[first] or "",
            stage=self._trace.events.text("stage")[first] or "",
            module=(self._trace["modules"].text("path")[module] or "") if module >= 0 else "",
            file=file,
            line=line,
            function=function,
            count=count,
            ms=ms,
            events=tuple(rows[:_MOST_EVENTS].tolist()),
        )

    def line(self, event: int) -> tuple[str, int | None, str]:
        """File, line and function of the user's code that led to an event, as far as is known.

        A profiler's Python frame tells the line on which its function begins, a range of lines the
        line that makes the call.
        """
        row = int(self._frame[event])
        name = self._names[row] or "" if row >= 0 else ""
        if frame := FrameName.of(name):
            return frame
        if lines := parse_lines(name) if name.startswith(LINES_RANGE) else ():
            return *lines[-1], ""
        module = int(self._trace.events["module"][event])
        return self._of_module(module) if module >= 0 else ("", None, "")

    def _of_module(self, module: int) -> tuple[str, int | None, str]:
        modules = self._trace["modules"]
        for file, line in (("call_file", "call_line"), ("file", "line")):
            path, number = modules.text(file)[module], int(modules[line][module])
            if path and number >= 0 and not _LIBRARY.search(path):
                return path, number, ""
        return "", None, ""

    @cached_property
    def _name(self) -> NDArray[np.int64]:
        """The name of each event, as a number; the ranges of all steps have one."""
        codes = self._names.codes.astype(np.int64)
        step = self._names.where(lambda name: name.startswith("ProfilerStep#"))
        return np.where(step, codes[step].min(initial=len(codes)), codes)

    @cached_property
    def _frame(self) -> NDArray[np.int32]:
        """For each event the innermost frame of the user's, or range of lines, that led to it."""
        events = self._trace.events
        python = events.text("category").mask("python")
        mine = python & self._names.where(_is_users)
        mine |= self._names.where(lambda name: name.startswith(LINES_RANGE))
        around = inherit(events["parent"], np.where(mine, events["id"], -1))
        caller = launch_of(self._trace)
        origin = inherit(events["parent"], events["forward_event"])
        origin[caller >= 0] = origin[caller[caller >= 0]]
        around[caller >= 0] = around[caller[caller >= 0]]
        forward = origin >= 0
        around[forward] = np.where(around[origin[forward]] >= 0, around[origin[forward]],
                                   around[forward])  # fmt: skip
        return around


def plain_name(name: str) -> str:
    """The name of an event in the user's words: a capture's range is the module's.

    Example:
        >>> plain_name("autograd::engine::evaluate_function: MmBackward0")
        'MmBackward0'
    """
    name = name.removeprefix(_ENGINE)
    module = name.removeprefix(MODULE_RANGE)
    return name if module == name else f"module {module.strip() or 'model'}"


def _is_users(name: str) -> bool:
    """Whether a Python frame is neither torch's nor Python's own."""
    frame = FrameName.of(name)
    if frame is None or _LIBRARY.search(frame.file):
        return False
    if not frame.file.endswith(".py") and not frame.file.startswith("<ipython-"):
        return False
    top = PurePosixPath(frame.file).parts[0].removesuffix(".py")
    return not top.startswith("<frozen") and top not in sys.stdlib_module_names
