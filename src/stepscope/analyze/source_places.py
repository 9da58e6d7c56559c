"""Map events to the user's program: module, and source line if recorded.

A compiled program's operations have the lines at which they were traced; an operation within a
library, such as a layer of Flax, has the user's line that called the library. A function of JAX
that runs outside `jax.jit` is a program of one operation, with the line at which it first ran."""

import ast
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import NamedTuple

import numpy as np

from stepscope.analyze.finding import Place
from stepscope.base.arrays import Floats, Ids, Ids32, IntArray, Mask, Rows
from stepscope.base.syntax_trees import loops_carry, parse_source
from stepscope.errors import BatchError
from stepscope.facts.annotate.jax.calls import call_around, called_function
from stepscope.facts.annotate.jax.device_runs import as_module, functions_of_work
from stepscope.facts.annotate.jax.frames import frame_rows, frames_of_events, is_users
from stepscope.facts.annotate.links.launches import at_launch, caller_of
from stepscope.facts.annotate.range_names import ENGINE, MODULE_RANGE, codes_of_names, has_lines, parse_lines
from stepscope.facts.summary.report_facts import CalledLine, count_samples, samples_of
from stepscope.read.recorded.members_json import CATEGORY
from stepscope.trace.arguments import parse
from stepscope.trace.frame_name import LIBRARY, FrameName, is_users_frame
from stepscope.trace.intervals import Intervals, grouped_union
from stepscope.trace.nesting import inherit, innermost
from stepscope.trace.row_order import rows_by_key
from stepscope.trace.sets import distinct_rows
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

Trees = Callable[[str], ast.AST]  # of the files of these paths


class CompiledLine(NamedTuple):
    """A line of a file; `-1` and empty if unknown."""

    file: str = ""
    number: int = -1


class CompiledSources:
    """The lines of the compiled operations of a trace; of none in a trace without programs."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._compiled = trace.metadata.is_of_xla
        self._captured = not self._compiled and len(trace["origins"]) > 0  # in CUDA graphs

    def line(self, event: int) -> CompiledLine:
        """The line of a compiled operation, or of the program whose call an event is in."""
        if not self._compiled:
            return (self._captured and self._of_users[self._frame[event]]) or CompiledLine()
        own = _line(self._trace.event_arguments(event).get("source"))
        if not is_users(own.file):
            own = self._of_users[self._frame[event]] or own
        return own if own.file else self._programs.get(as_module(self.program(event)), CompiledLine())

    def captured_at(self, rows: IntArray) -> Ids:
        """The frame in which work of a CUDA graph was captured, -1 for other work."""
        return self._frame[rows] if self._captured else np.full(len(rows), -1)

    def program(self, event: int) -> str:
        """The compiled function whose call an event is part of, empty if none."""
        call = int(self._call[event]) if self._compiled else -1
        return called_function(self._trace.events.text("name")[call] or "") if call >= 0 else ""

    @cached_property
    def _frame(self) -> Ids:
        """The frame at which each event was traced, -1 if unknown."""
        return frames_of_events(self._trace)

    @cached_property
    def _of_users(self) -> list[CompiledLine | None]:
        """The user's line in or around each frame; and last None, for what has no frame."""
        result: list[CompiledLine | None] = []
        for row in frame_rows(self._trace["frames"]):
            around = result[row.above] if row.above >= 0 else None
            result.append(CompiledLine(row.file, row.line) if is_users(row.file) else around)
        return [*result, None]

    @cached_property
    def _call(self) -> Ids32:
        return call_around(self._trace)

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
        texts = self._trace.arguments.texts(events["source"][rows])
        functions = functions_of_work(self._trace, rows).tolist()
        for row, found, function in zip(rows.tolist(), map(parse, texts), functions, strict=True):
            line = _line(found.get("source"))
            if not is_users(line.file):
                line = self._of_users[self._frame[row]] or line
            if line.file:
                lines.setdefault(function, Counter())[line] += 1
        return lines

    @cached_property
    def _lines_by_function(self) -> dict[str, Counter[CompiledLine]]:
        """The lines of the user's functions in which operations were traced, by their names."""
        result: dict[str, Counter[CompiledLine]] = {}
        for row in frame_rows(self._trace["frames"]):
            if is_users(row.file):
                result.setdefault(as_module(row.name), Counter())[CompiledLine(row.file, row.line)] += 1
        return result


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
    return CompiledLine(file, int(number)) if number.isascii() and number.isdigit() else CompiledLine()


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
_ACTIVITY = re.compile(r"^stepscope\.(?:(evaluation|checkpointing)|block): (\S+) \((.*):(\d{1,9})\)$")
_BY_FUNCTION, _BY_HOOK = 1, 2  # what Python calls in a backward pass: in a function of its own, or in a hook
_NODE = re.compile(r"^\w+Backward\d+$")  # of autograd's own
_ACCUMULATES = "torch::autograd::AccumulateGrad"
# Beside nodes: sums of gradients, to their shapes, and of data parallel training.
_OF_AUTOGRAD = re.compile(
    r"^(?!aten::)|^aten::(add_?|clone|copy_|detach|div_|mul|new_empty_strided|sum|to|view|zero_)$"
)
_MOST_EVENTS = 100_000  # of a place
_FEWEST_SAMPLES = 2  # one may be of what runs next
_NEAR_NS = 20_000  # as `DISPATCH_NS`: Python right before and after a call is mostly of its statement
_MOSTLY = 0.5  # of the samples there


class MostSampled(NamedTuple):
    """A line, its function if that is none of a file, and the lines that call it."""

    file: str
    line: int
    function: str
    called: tuple[str, ...]

    def around(self, place: tuple[str, int | None, str]) -> tuple[str, ...]:
        """The lines that call a compiled program with that line, where these samples saw its call."""
        own = f"{self.function or '<module>'} ({self.file}:{self.line})"  # in its function, if that is called
        return self.called or ((own,) if place[:2] != self[:2] else ())


class PlaceFinder:
    """Finds the place of the events of a trace."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._names = trace.events.text("name")
        self._name = codes_of_names(self._names)
        self._compiled = CompiledSources(trace)

    def of(self, rows: IntArray, steps: int, calls: Floats | None = None) -> tuple[Place, ...]:
        """Events grouped by name, stage, module and line, by time."""
        rows = np.asarray(rows)
        events = self._trace.events
        frame = self._frame[rows]
        code = np.where(frame >= 0, events["name"][frame], -1)
        captured = self._compiled.captured_at(rows)
        keys = self._name[rows], events["stage"][rows], events["module"][rows], code, captured
        distinct, number = distinct_rows(*keys, self._by_python[rows])
        spent = np.bincount(number, events["duration_ns"][rows], len(distinct))
        if calls is None:  # what runs within or beside others of the group takes no time of its own
            spent = grouped_union(number, *events.spans(rows), len(distinct))
        count = np.bincount(number, None if calls is None else calls[rows], len(distinct)) / steps
        parts = (rows[part] for part in rows_by_key(number).values())
        places = map(self._place, parts, (spent / 1e6 / steps).tolist(), count.tolist())
        return tuple(sorted(places, key=lambda place: -place.ms))

    def _place(self, rows: IntArray, ms: float, count: float) -> Place:
        first = int(rows[0])
        module, by_python = int(self._trace.events["module"][first]), int(self._by_python[first])
        place, called = self._recorded(first), tuple[str, ...]()
        asks = by_python or not place[0] or self._compiled.line(first).file
        if asks and (seen := self._sampled(rows, module)):
            keeps = place[0] and not by_python
            place, called = (place, seen.around(place)) if keeps else (seen[:3], seen.called)
        file, line, function = place if place[0] or by_python == _BY_HOOK else self._of_module(module)
        return Place(
            name=self._names[first] or "",
            stage=self._trace.events.text("stage")[first] or "",
            module=(self._trace["modules"].text("path")[module] or "") if module >= 0 else "",
            file=file,
            line=line,
            function=function,
            called=called,
            count=count,
            ms=ms,
            events=tuple(rows[:_MOST_EVENTS].tolist()),
        )

    def _recorded(self, event: int) -> tuple[str, int | None, str]:
        """File, line and function of the user's code that caused an event, but for its module's call.

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
        called = self._of_module(int(self._trace.events["module"][event]))
        activity = None if called[0] else _ACTIVITY.match(name)
        return (activity[3], int(activity[4]), activity[2]) if activity else ("", None, "")

    def _sampled(self, rows: IntArray, module: int) -> MostSampled | None:
        """The line that samples of a capture saw most while events of its thread ran, in two of them.

        Of a module's events it is one that it runs; of autograd's gradients, one of the forward pass.
        """
        instants, events = self._samples, self._trace.events
        if not len(instants):
            return None
        if self._by_python[rows[0]]:
            instants = instants.take(~instants.text("name").mask(*self._calls_of_backward))
        elif module >= 0:
            instants = instants.take(instants.text("category").mask(CATEGORY))
            rows = np.where(self._origin[rows] >= 0, self._origin[rows], rows)
        instants = instants.take(np.isin(instants["track"], events["track"][rows]))
        start, end = events.spans(rows)
        near = Intervals(start - _NEAR_NS, end + _NEAR_NS)
        seen = most_sampled(instants, Intervals(start, end), _FEWEST_SAMPLES)
        return seen or most_sampled(instants, near, _FEWEST_SAMPLES, _MOSTLY)

    @cached_property
    def _samples(self) -> Table:
        return samples_of(self._trace)

    @cached_property
    def _calls_of_backward(self) -> Sequence[str]:
        """What samples saw while autograd ran nodes of its own."""
        events = self._trace.events
        nodes = np.flatnonzero(self._names.where(lambda name: bool(_NODE.match(name))))
        during = Intervals(*events.spans(nodes)).cover(self._samples["time_ns"])
        return self._samples.text("name").take(during).compact().values

    @cached_property
    def _by_python(self) -> Ids:
        """What called each event within a node of autograd, by Python; 0 for all else."""
        events, names = self._trace.events, self._names
        parent, linked = events["parent"], events["forward_event"]
        called = {*names.take(linked[linked >= 0]).compact().values} - {"CompiledFunction"}
        custom = names.where(lambda name: name.endswith("Backward") and name[:-8] in called)
        engine = names.where(lambda name: name.startswith(ENGINE))
        hooks = ~names.where(lambda name: bool(_OF_AUTOGRAD.match(name)))
        hooks |= events.text("category").mask("annotation")
        hooks &= np.append(engine | names.mask(_ACCUMULATES), False)[parent]
        begun = np.where(np.append(custom, False)[parent], _BY_FUNCTION, np.where(hooks, _BY_HOOK, 0))
        around = innermost(parent, (begun > 0) | engine)
        return np.append(begun, 0)[at_launch(self._trace, around, caller_of)]

    def _of_module(self, module: int) -> tuple[str, int | None, str]:
        modules = self._trace["modules"]
        if module < 0:
            return "", None, ""
        for file, line in (("call_file", "call_line"), ("file", "line")):
            path, number = modules.text(file)[module], int(modules[line][module])
            if path and number >= 0 and not LIBRARY.search(path):
                return path, number, ""
        return "", None, ""

    @cached_property
    def _frame(self) -> Ids32:
        """For each event the innermost frame of the user, or range of lines, that caused it."""
        events = self._trace.events
        users = events.text("category").mask("python") & self._names.where(is_users_frame)
        users |= self._names.where(lambda name: has_lines(name) or bool(_ACTIVITY.match(name)))
        around = innermost(events["parent"], users)
        inner = innermost(events["parent"], users | (events["forward_event"] >= 0))
        inner, around = (at_launch(self._trace, each, caller_of) for each in (inner, around))
        origin = self._origin
        forward = (origin >= 0) & (inner != around)
        around[forward] = np.where(around[origin[forward]] >= 0, around[origin[forward]], around[forward])
        return around

    @cached_property
    def _origin(self) -> Ids32:
        """The event of the forward pass whose gradient each event computes, -1 for others."""
        events = self._trace.events
        return at_launch(self._trace, inherit(events["parent"], events["forward_event"]), caller_of)


def most_sampled(samples: Table, spans: Intervals, fewest: int, part: float = 0.0) -> MostSampled | None:
    """File, line and function that most samples in some spans saw; of the training loop it is a
    line. None if fewer saw it, or less than this part of them."""
    seen = count_samples(samples, spans)
    most = max(seen, key=lambda place: seen[place].total(), default=None)
    total = sum(map(Counter.total, seen.values()))
    if most is None or seen[most].total() < max(fewest, part * total):
        return None
    line: CalledLine = seen[most].most_common(1)[0][0]
    return MostSampled(most[1], line.line, "" if most[0] == "<module>" else most[0], line.called)


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


def what_is_called(name: str) -> str:
    """The name of an event without the path of the user's file, which is no evidence of what runs.

    Example:
        >>> what_is_called("evaluate/train.py(3): fit"), what_is_called("torch/serialization.py(9): save")
        ('fit', 'torch/serialization.py(9): save')
        >>> what_is_called("stepscope.evaluation: fit (evaluate/train.py:9)")
        'stepscope.evaluation: fit'
    """
    if activity := _ACTIVITY.match(name):
        return name.removesuffix(f" ({activity[3]}:{activity[4]})")
    frame = FrameName.of(name)
    return frame.function if frame and is_users_frame(name) else name


_MODULE_FILES = re.compile(r"(^|/)torch/nn/modules/\w+\.py$")
_OF_PARTS = re.compile(r"(^|/)torch/nn/modules/transformer\.py$")
_CLASSES_OF_PARTS = re.compile(r"^(MultiheadAttention|Transformer((En|De)coder(Layer)?)?)$")
_REARRANGES = re.compile(
    r"^aten::(_?reshape\w*|_unsafe_view|as_strided|chunk|clone|contiguous|copy_|diagonal|expand"
    r"|flatten|index|narrow|permute|select|slice|split\w*|squeeze|t|transpose|unbind|unflatten"
    r"|unsqueeze|view)$"
)


def are_of_pytorch(trace: Trace, rows: Rows) -> Mask:
    """Whether PyTorch itself chose each of these operators of the forward pass.

    In its attention and in layers of transformers it chose all; in other modules, where a module
    and its operator are one choice (a ReLU, an embedding), those that rearrange a tensor.
    """
    modules, names = trace["modules"], trace.events.text("name")
    file, of_class = modules.text("file"), modules.text("class")
    known = file.where(lambda path: bool(_MODULE_FILES.search(path)))
    parts = file.where(lambda path: bool(_OF_PARTS.search(path)))
    may_be = ~file.where(bool) | known  # of PyTorch: the file is not recorded, or is PyTorch's
    parts |= of_class.where(lambda name: bool(_CLASSES_OF_PARTS.match(name))) & may_be
    rearranges = names.where(lambda name: bool(_REARRANGES.match(name)))[rows]
    module = trace.events["module"][rows]
    return np.append(parts, False)[module] | np.append(known, False)[module] & rearranges


def tree_of(path: str) -> ast.AST:
    from stepscope.models.batch_size.source_files import read_text  # slow, and few traces need it

    return parse_source(read_text(path))


def carries_at(tree: Trees, file: str, line: int | None, called: Sequence[str] = ()) -> list[bool]:
    """`loops_carry` of the loops around a line, and around those that call it."""
    lines = [(file, str(line)), *(one.partition(" (")[2][:-1].rpartition(":")[::2] for one in called)]
    with suppress(BatchError, SyntaxError, ValueError, RecursionError):
        return [carries for path, number in lines for carries in loops_carry(tree(path), int(number))]
    return []
