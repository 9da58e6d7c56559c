"""Map events to the user's program: module, and source line if recorded."""

from __future__ import annotations

import re
import sys
from functools import cached_property
from pathlib import PurePosixPath

import numpy as np

from stepscope.analyze.compiled_sources import CompiledSources
from stepscope.analyze.finding import Place
from stepscope.annotate.links.launches import launch_of
from stepscope.annotate.range_names import MODULE_RANGE, has_lines, parse_lines
from stepscope.arrays import Floats, Ids, Ids32, IntArray
from stepscope.trace.frame_name import FrameName
from stepscope.trace.nesting import inherit
from stepscope.trace.row_order import begins_run
from stepscope.trace.trace import Trace

_LIBRARY = re.compile(
    r"(^|/)(torch|torchvision|stepscope|site-packages|dist-packages|lib/python3)/"
)
# What frameworks call internally, in words.
_INTERNAL = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"^ProfilerStep#|^stepscope\.step#|#step_num=\d+$", "the training loop"),
        (r"RegisterPostBackwardFunction|_post_backward|PostBackward", "FSDP's post-backward hook"),
        (r"RegisterPreBackward|_pre_backward|PreBackward", "FSDP's pre-backward hook"),
        (r"^enumerate\(DataLoader\)#", "the DataLoader"),
        (r"^torch::autograd::AccumulateGrad$", "gradient accumulation"),
        (r"^torch::autograd::CopyBackwards$", "the gradient of a copy"),
    )
)
_PREFIX = re.compile(
    r"^(autograd::engine::evaluate_function: |stepscope\.optimizer: |Optimizer\.\w+#|nn\.Module: "
    r"|#+ )"
)
_ACTIVITY = re.compile(r"^stepscope\.(?:(evaluation|checkpointing)|block): (\S+) \((.*):(\d+)\)$")
_MOST_EVENTS = 100_000


class PlaceFinder:
    """Finds the place of the events of a trace."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._names = trace.events.text("name")
        self._compiled = CompiledSources(trace)

    def of(self, rows: IntArray, steps: int, calls: Floats | None = None) -> tuple[Place, ...]:
        """Events grouped by name, stage, module and line, by time.

        Args:
            rows: events.id.
            steps: number of steps, for counts and times per step.
            calls: number of calls that each event stands for; by default one.
        """
        rows = np.asarray(rows)
        events = self._trace.events
        frame = self._frame[rows]
        code = np.where(frame >= 0, events["name"][frame], -1)
        keys = self._name[rows], events["stage"][rows], events["module"][rows], code
        order = np.lexsort(keys[::-1])
        begins = np.any([begins_run(key[order]) for key in keys], axis=0)
        number, firsts = np.cumsum(begins) - 1, np.flatnonzero(begins)
        ordered = rows[order]
        weight = None if calls is None else calls[ordered]
        time = np.bincount(number, events["duration_ns"][ordered], len(firsts)) / 1e6 / steps
        count = np.bincount(number, weight, len(firsts)) / steps
        parts = np.split(ordered, firsts[1:]) if len(rows) else []
        places = [
            self._place(part, float(time[index]), float(count[index]))
            for index, part in enumerate(parts)
        ]
        return tuple(sorted(places, key=lambda place: -place.ms))

    def _place(self, rows: IntArray, ms: float, count: float) -> Place:
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
        """File, line and function of the user's code that caused an event, as far as known.

        A profiler's Python frame has the line on which its function begins; a range of lines has
        the line of the call; a compiled operation has the line at which it was traced, a compiled
        program its first line; an evaluation or a checkpoint has the line at which it began.
        """
        if (compiled := self._compiled.line(event)).file:
            return *compiled, self._compiled.program(event)
        row = int(self._frame[event])
        name = self._names[row] or "" if row >= 0 else ""
        if frame := FrameName.of(name):
            return frame
        if lines := parse_lines(name) if has_lines(name) else ():
            return *lines[-1], ""
        module = int(self._trace.events["module"][event])
        called = self._of_module(module) if module >= 0 else ("", None, "")
        activity = None if called[0] else _ACTIVITY.match(name)
        return (activity[3], int(activity[4]), activity[2]) if activity else called

    def _of_module(self, module: int) -> tuple[str, int | None, str]:
        modules = self._trace["modules"]
        for file, line in (("call_file", "call_line"), ("file", "line")):
            path, number = modules.text(file)[module], int(modules[line][module])
            if path and number >= 0 and not _LIBRARY.search(path):
                return path, number, ""
        return "", None, ""

    @cached_property
    def _name(self) -> Ids:
        """The name code of each event; the ranges of all steps share one."""
        codes = self._names.codes.astype(np.int64)
        step = self._names.where(lambda name: name.startswith("ProfilerStep#"))
        return np.where(step, codes[step].min(initial=len(codes)), codes)

    @cached_property
    def _frame(self) -> Ids32:
        """For each event the innermost frame of the user, or range of lines, that caused it."""
        events = self._trace.events
        python = events.text("category").mask("python")
        users = python & self._names.where(_is_users)
        users |= self._names.where(lambda name: has_lines(name) or bool(_ACTIVITY.match(name)))
        around = inherit(events["parent"], np.where(users, events["id"], -1))
        caller = launch_of(self._trace)
        origin = inherit(events["parent"], events["forward_event"])
        origin[caller >= 0] = origin[caller[caller >= 0]]
        around[caller >= 0] = around[caller[caller >= 0]]
        forward = origin >= 0
        around[forward] = np.where(around[origin[forward]] >= 0, around[origin[forward]],
                                   around[forward])  # fmt: skip
        return around


def plain_name(name: str) -> str:
    """The name of an event for the reader: without internal prefixes.

    Example:
        >>> plain_name("autograd::engine::evaluate_function: MmBackward0")
        'MmBackward0'
        >>> plain_name("stepscope.evaluation: validate (train.py:9)")
        'evaluation in validate'
    """
    if activity := _ACTIVITY.match(name):
        return f"{activity[1] or 'a block without gradients'} in {activity[2]}"
    name = _PREFIX.sub("", name).removesuffix(" ##")
    if (module := name.removeprefix(MODULE_RANGE)) != name:
        return module.strip() or "the model"
    if frame := FrameName.of(name):
        return f"{frame.file}:{frame.line} in {frame.function}"
    return next((words for pattern, words in _INTERNAL if pattern.search(name)), name)


def _is_users(name: str) -> bool:
    """Whether a Python frame belongs neither to torch nor to Python itself."""
    frame = FrameName.of(name)
    if frame is None or _LIBRARY.search(frame.file):
        return False
    if not frame.file.endswith(".py") and not frame.file.startswith("<ipython-"):
        return False
    top = PurePosixPath(frame.file).parts[0].removesuffix(".py")
    return not top.startswith("<frozen") and top not in sys.stdlib_module_names
