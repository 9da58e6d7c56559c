"""The part of a trace that a summary tells of: the chosen steps of one rank."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from stepscope.annotate.idle import windows
from stepscope.annotate.steps import ranks_with_steps, require_steps
from stepscope.annotate.warm_up import settled
from stepscope.errors import TraceError
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace


class Part:
    """The chosen steps of one rank.

    Args:
        trace: an annotated trace.
        rank: which rank.
        step: one step's number; None for all but a first one that warms up.

    Attributes:
        steps: their rows of the table of steps.
        count: how many they are.
        warming: the row of the step that is left out, or none.

    Raises:
        TraceError: if there is no such rank or step.
    """

    def __init__(self, trace: Trace, rank: int, step: int | None) -> None:
        self.trace, self.rank = trace, rank
        steps = trace["steps"]
        require_steps(trace)
        mine = steps["rank"] == rank
        if not mine.any():
            raise TraceError(f"expected a rank of {list(ranks_with_steps(trace))}, found {rank}")
        if step is not None:
            known = steps["step"][mine].tolist()
            mine &= steps["step"] == step
            if not mine.any():
                raise TraceError(f"expected a step of {known}, found {step}")
        chosen = mine & settled(steps) if step is None else mine
        self.steps, self.warming = steps.take(chosen), steps.take(mine & ~chosen)
        self.count = len(self.steps)

    def rows_of(self, table: Table) -> Table:
        """The rows of a table with rank and step that are of these steps."""
        mine = table["rank"] == self.rank
        return table.take(mine & np.isin(table["step"], self.steps["step"]))

    @cached_property
    def chosen_events(self) -> NDArray[np.bool_]:
        """Events of the steps, those on devices included, bool, shape (events,)."""
        events = self.trace.events
        rank = self.trace["tracks"]["rank"][events["track"]]
        chosen: NDArray[np.bool_] = (rank == self.rank) & np.isin(
            events["step"], self.steps["step"]
        )
        return chosen

    @cached_property
    def windows(self) -> list[tuple[int, int]]:
        """Start and end of each step's time on devices, ns; see `annotate.idle.windows`."""
        chosen = set(self.steps["step"].tolist())
        steps = self.trace["steps"]
        mine = self.trace.with_table(steps.take(steps["rank"] == self.rank))
        return [(start, end) for step, start, end in windows(mine) if step in chosen]

    @cached_property
    def work(self) -> NDArray[np.intp]:
        """Events that are work: of devices, or operators where there is no device, shape (n,)."""
        return np.flatnonzero(self.chosen_events & (self.trace.events["kind"] >= 0))

    @cached_property
    def works_on_device(self) -> bool:
        """Whether the work is that of devices."""
        track = self.trace.events["track"][self.work]
        return bool((self.trace["tracks"]["device"][track] >= 0).any())

    @cached_property
    def work_ns(self) -> NDArray[np.int64]:
        """How long each piece of work takes, an operator without those inside it, shape (n,)."""
        column = "duration_ns" if self.works_on_device else "self_ns"
        result: NDArray[np.int64] = self.trace.events[column][self.work]
        return result
