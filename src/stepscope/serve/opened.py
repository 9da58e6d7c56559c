"""A trace as the page looks at it: with its timeline, and what is asked for again and again."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from threading import RLock
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from stepscope.annotate.warm_up import settled
from stepscope.errors import ServeError, TraceError
from stepscope.serve.query import Query
from stepscope.serve.source_files import SourceFiles
from stepscope.timeline import Timeline
from stepscope.timeline.lines import LineCost, line_costs
from stepscope.timeline.step_id import StepId
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

Answer = TypeVar("Answer")


def no_other(id: str) -> Trace:
    """For a trace beside which none is open: raises ServeError."""
    raise ServeError(f"expected the id of an open trace, found {id[:80]!r}: none is beside", 404)


class OpenTrace:
    """A trace with its timeline.

    Args:
        trace: an annotated trace.
        other: gives another open trace by its id, where there are several.

    Attributes:
        trace, other: as given.
        timeline: of it.
        start: the path of the step to begin with, empty where there is no step.
    """

    def __init__(self, trace: Trace, other: Callable[[str], Trace] = no_other) -> None:
        self.trace, self.other, self.timeline = trace, other, Timeline(trace)
        self.start = self.timeline.start()
        self._kept: dict[tuple[Any, ...], Any] = {}
        self._keeping = RLock()

    @property
    def rank(self) -> int:
        """The rank of the step to begin with."""
        return StepId.of(self.start).rank if self.start else self.trace.metadata.ranks[0]

    @property
    def holds_contexts_alone(self) -> bool:
        """Whether contexts of a whole run are all there is: no step was recorded."""
        return not len(self.trace["steps"]) and len(self.trace["contexts"]) > 0

    def rank_of(self, query: Query) -> int:
        """The rank that a request asks about."""
        asked = query.number("rank")
        return self.rank if asked is None else asked

    def keep(self, key: tuple[Any, ...], make: Callable[[], Answer]) -> Answer:
        """What `make` gives, made once for a key."""
        with self._keeping:  # of two tabs that ask at once, one waits for the other's answer
            if key not in self._kept:
                self._kept[key] = make()
            found: Answer = self._kept[key]
            return found

    @cached_property
    def sources(self) -> SourceFiles:
        """The source files that the trace names."""
        return SourceFiles(self.trace)

    def chosen(self, rank: int, step: int | None) -> NDArray[np.bool_]:
        """Events of one step on a rank, or of all but one that warms up, bool, shape (events,)."""
        wanted = self.steps_of(rank, step)["step"]
        mine: NDArray[np.bool_] = (self.timeline.index.rank == rank) & np.isin(
            self.trace.events["step"], wanted
        )
        if not mine.any():
            what = "steps" if step is None else f"step {step}"
            raise TraceError(f"expected {what} of rank {rank}, found none in this trace")
        return mine

    def steps_of(self, rank: int, step: int | None) -> Table:
        """One step of a rank, or all but one that warms up."""
        table = self.trace["steps"]
        wanted = settled(table) if step is None else table["step"] == step
        return table.take(wanted & (table["rank"] == rank))

    def wall_ns(self, rank: int, step: int | None) -> int:
        """How long these steps take together."""
        steps = self.steps_of(rank, step)
        return int((steps["end_ns"] - steps["start_ns"]).sum())

    def line_costs(self, rank: int, step: int | None) -> tuple[list[LineCost], int]:
        """What each source line costs in the chosen steps, and how many these are."""

        def make() -> tuple[list[LineCost], int]:
            chosen = self.chosen(rank, step)
            count = len(np.unique(self.trace.events["step"][chosen]))
            return line_costs(self.timeline.index, chosen), count

        return self.keep(("lines", rank, step), make)
