"""A trace as the page reads it: with its timeline and a cache of computed results."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from threading import Lock, RLock
from typing import Any, TypeVar

import numpy as np

from stepscope.errors import ServeError
from stepscope.memory.memory_comparison import holds_memory
from stepscope.serve.requests import Query
from stepscope.serve.source_files import SourceFiles
from stepscope.summary.selected_steps import SelectedSteps
from stepscope.timeline import Timeline
from stepscope.timeline.axis import TimeAxis
from stepscope.timeline.operation import StepId
from stepscope.timeline.operation_labels import distinct_short_names, short_name
from stepscope.timeline.source_lines import LineCost, line_costs
from stepscope.trace.trace import Trace

Result = TypeVar("Result")


def no_other_trace(id: str) -> Trace:
    """For a view without other open traces: raises ServeError."""
    raise ServeError(f"no other trace is open, so none has the id {id[:80]!r}", 404)


class TraceView:
    """A trace with its timeline.

    Args:
        trace: an annotated trace.
        other: returns another open trace by its id.
        source_root: the folder that source files may be read from; by default those that the trace
            names may be.

    Attributes:
        trace, other, source_root: as given.
        timeline: the trace's timeline.
        start: path of the step to open first, empty if the trace has no step.
    """

    def __init__(
        self,
        trace: Trace,
        other: Callable[[str], Trace] = no_other_trace,
        source_root: Path | None = None,
    ) -> None:
        self.trace, self.other, self.timeline = trace, other, Timeline(trace)
        self.source_root = source_root
        self.start = self.timeline.start()
        self._cache: dict[tuple[Any, ...], Any] = {}
        self._computing: dict[tuple[Any, ...], RLock] = {}
        self._lock = Lock()

    @property
    def rank(self) -> int:
        """The rank of the step to open first."""
        return StepId.of(self.start).rank if self.start else self.trace.metadata.ranks[0]

    @property
    def has_only_contexts(self) -> bool:
        """Whether the trace holds contexts of a whole run and no recorded step."""
        return not len(self.trace["steps"]) and len(self.trace["contexts"]) > 0

    @property
    def has_only_memory(self) -> bool:
        """Whether the trace holds a history of memory and no recorded step."""
        return not len(self.trace["steps"]) and holds_memory(self.trace)

    def rank_of(self, query: Query) -> int:
        """The rank that a request asks about."""
        rank = query.number("rank")
        return self.rank if rank is None else rank

    def cached(self, key: tuple[Any, ...], compute: Callable[[], Result]) -> Result:
        """The result of `compute`, computed once for each key; other keys do not wait for it."""
        with self._lock:
            computing = self._computing.setdefault(key, RLock())
        with computing:  # if two tabs ask at once, the second waits for the first's result
            if key not in self._cache:
                self._cache[key] = compute()
            result: Result = self._cache[key]
            return result

    @cached_property
    def _device_names(self) -> dict[str, str]:
        """Short names of device work, each distinct."""
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
        """The tracks on one axis, made once."""
        return self.cached(("time axis",), lambda: TimeAxis(self.timeline.index))

    @cached_property
    def sources(self) -> SourceFiles:
        """The source files that the trace names."""
        return SourceFiles(self.trace, self.source_root)

    def selected(self, rank: int, step: int | None) -> SelectedSteps:
        """One step of a rank, or all steps except warm-up."""
        key = ("steps", rank, step)
        return self.cached(key, lambda: SelectedSteps(self.trace, rank, step))

    def line_costs(self, rank: int, step: int | None) -> tuple[list[LineCost], int]:
        """Cost of each source line in the chosen steps, and the number of steps."""
        selected, index = self.selected(rank, step), self.timeline.index
        costs = self.cached(
            ("lines", rank, step), lambda: line_costs(index, selected.chosen_events)
        )
        return costs, selected.count
