"""A trace as the page reads it: its timeline, a cache of computed results, and its source files.

Only source files that the trace names are read.
"""

import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock, RLock
from typing import Any, TypeVar

import numpy as np

from stepscope.analyze import RULES, Rule
from stepscope.errors import ServeError
from stepscope.faces.page.requests import Query
from stepscope.facts.contexts import ContextTree, build_contexts
from stepscope.facts.summary.selected_steps import SelectedSteps
from stepscope.facts.timeline import Timeline
from stepscope.facts.timeline.axis.time_axis import TimeAxis
from stepscope.facts.timeline.operation import StepId
from stepscope.facts.timeline.operation_labels import distinct_short_names, short_name
from stepscope.facts.timeline.source_lines import LineCost, frame_place, line_costs
from stepscope.models.memory.device_facts import holds_memory
from stepscope.models.ranks.job import findings_of, report_of_trace
from stepscope.trace.frame_name import LIBRARY
from stepscope.trace.trace import Trace

_MAX_BYTES = 2_000_000  # of a source file; chosen: longer ones are hardly written by people
_OURS = Path(__file__).parents[2]
_PACKAGES = ("site-packages", "dist-packages")
Result = TypeVar("Result")


@dataclass(frozen=True)
class SourceText:
    """A source file: its text, or the reason why there is none."""

    text: str | None  # None if it cannot be read
    reason: str = ""  # why not, else empty
    changed: bool = False  # whether it was written after the recording


class SourceFiles:
    """The files that an annotated trace names for modules, their calls, and Python frames.

    A trace may come from anyone. So only Python files are read, and a relative name is resolved in
    the folder that the recorded program ran in, never outside it. With a `root` of the user's
    choice names are resolved in that, and no file outside it is read, wherever links lead.
    """

    def __init__(self, trace: Trace, root: Path | None = None) -> None:
        self.names, self.root = _named(trace), root
        capture = trace.metadata.capture
        cwd = capture.get("cwd")
        recorded = Path(cwd) if isinstance(cwd, str) and Path(cwd).is_absolute() else None
        self._folder = root or recorded
        created = capture.get("created_unix_ns")
        self._recorded_ns = created if isinstance(created, int) else 0

    def read(self, name: str) -> SourceText:
        """The text of a file."""
        if name not in self.names:
            raise ServeError("this trace does not name the file", 404)
        found = self._find(name)
        return found if isinstance(found, SourceText) else self._text(found)

    def is_readable(self, name: str) -> bool:
        """Whether a file that the trace names can be read; does not read it."""
        return not isinstance(self._find(name), SourceText)

    def is_installed(self, name: str) -> bool:
        """Whether a file belongs to an installed package or to Python itself."""
        path = Path(name)
        if not path.is_absolute():  # PyTorch omits the folder of its package
            return LIBRARY.search(name) is not None
        libraries = (Path(sysconfig.get_path("stdlib")), _OURS)
        return bool(set(_PACKAGES) & set(path.parts)) or any(map(path.is_relative_to, libraries))

    def _find(self, name: str) -> Path | SourceText:
        """The file itself, or why it is not served."""
        try:
            path = self._path(Path(name))
            real = path.resolve(strict=True) if path else None
            if path is None or real is None or not real.is_file():
                return SourceText(None, "the file is not on this machine")
            if real.suffix != ".py" or real.parent != path.parent.resolve():
                return SourceText(None, "the name is a link to another file, which is not shown")
            if self.root and not _inside(real, self.root):
                return SourceText(None, "the file is outside the source folder")
            if not Path(name).is_absolute() and not _inside(real, self._folder):
                return SourceText(None, "the file is outside the project")
            return real
        except (OSError, ValueError, RuntimeError):  # a loop of links, an invalid name
            return SourceText(None, "the file is not on this machine")

    def _path(self, path: Path) -> Path | None:
        if path.is_absolute():
            return path
        within = self._folder / path if self._folder else None
        if within is None or not _inside(within.resolve(), self._folder):
            return None
        return within

    def _text(self, path: Path) -> SourceText:
        try:
            facts = path.stat()
            if facts.st_size > _MAX_BYTES:
                return SourceText(None, f"the file is larger than {_MAX_BYTES:,} bytes")
            text = path.read_text("utf-8", "replace")
        except OSError as error:
            return SourceText(None, f"the file cannot be read: {error.strerror}")
        changed = bool(self._recorded_ns) and facts.st_mtime_ns > self._recorded_ns
        return SourceText(text, "", changed)


def _inside(path: Path, folder: Path | None) -> bool:
    return folder is not None and path.is_relative_to(folder.resolve())


def _named(trace: Trace) -> frozenset[str]:
    modules = trace["modules"]
    files = {name for column in ("file", "call_file") for name in modules.text(column) if name}
    frames = (frame_place(name) for name in trace.events.text("name").values)
    files |= {place.file for place in frames if place}
    contexts = trace["contexts"]
    collected = contexts.text("file").take(contexts.text("kind").mask("python"))
    return frozenset(files | {name for name in collected.compact().values if name})


def no_other_trace(id: str) -> Trace:
    """For a view without other open traces: raises ServeError."""
    raise ServeError(f"no other trace is open, so none has the id {id[:80]!r}", 404)


class TraceView:
    """An annotated trace with its timeline.

    Args:
        other: returns another open trace by its id.
        source_root: the folder that source files may be read from; by default those that the trace
            names may be.
        rules: custom rules for the findings.

    Attributes:
        rules: the built-in rules, then the custom ones.
        job: the ranks of the job compared; None for a single one.
        start: path of the step to open first, empty if the trace has no step.
    """

    def __init__(
        self,
        trace: Trace,
        other: Callable[[str], Trace] = no_other_trace,
        source_root: Path | None = None,
        rules: Sequence[Rule] = (),
    ) -> None:
        self.trace, self.other, self.job = trace, other, report_of_trace(trace)
        rank = findings_of(self.job).slowest_rank if self.job else None
        self.timeline = Timeline(trace, rank=rank)
        self.source_root, self.rules = source_root, [*RULES, *rules]
        self.start = self.timeline.start()
        self._cache: dict[tuple[Any, ...], Any] = {}
        self._computing: dict[tuple[Any, ...], RLock] = {}
        self._lock = Lock()

    @property
    def rank(self) -> int:
        return StepId.of(self.start).rank if self.start else self.trace.metadata.ranks[0]

    @property
    def has_only_memory(self) -> bool:
        return not len(self.trace["steps"]) and holds_memory(self.trace)

    def rank_of(self, query: Query) -> int:
        rank = query.number("rank")
        return self.rank if rank is None else rank

    def cached(self, key: tuple[Any, ...], compute: Callable[[], Result]) -> Result:
        """The result of `compute`, computed once for each key; other keys do not wait for it."""
        with self._lock:
            computing = self._computing.setdefault(key, RLock())
        with computing:  # if two tabs ask at once, the second waits for the first's result
            if key not in self._cache:
                self._cache[key] = compute()
            return self._cache[key]

    @cached_property
    def _device_names(self) -> dict[str, str]:
        text = self.trace.events.text("name").take(np.flatnonzero(self.timeline.index.on_device))
        return distinct_short_names(text.compact().values)

    def short_name(self, event: int) -> str:
        """The name of an event as briefly as it stays recognizable."""
        name = self.trace.events.text("name")[event] or ""
        if self.timeline.index.on_device[event]:
            return self._device_names.get(name) or short_name(name)
        return short_name(name)

    @property
    def time_axis(self) -> TimeAxis:
        return self.cached(("time axis",), lambda: TimeAxis(self.timeline.index))

    @cached_property
    def sources(self) -> SourceFiles:
        return SourceFiles(self.trace, self.source_root)

    def selected(self, rank: int, step: int | None) -> SelectedSteps:
        return self.cached(("steps", rank, step), lambda: SelectedSteps(self.trace, rank, step))

    def contexts(self, rank: int | None, step: int | None) -> ContextTree:
        """The calling-context tree of a rank and a step, or of all."""
        rank = None if self.trace.metadata.ranks == (rank,) else rank
        return self.cached(("contexts", rank, step), lambda: build_contexts(self.trace, rank=rank, step=step))

    def line_costs(self, rank: int, step: int | None) -> tuple[list[LineCost], int]:
        """Cost of each source line in the chosen steps, and the number of steps."""
        selected, index = self.selected(rank, step), self.timeline.index
        costs = self.cached(("lines", rank, step), lambda: line_costs(index, selected.chosen_events))
        return costs, selected.count
