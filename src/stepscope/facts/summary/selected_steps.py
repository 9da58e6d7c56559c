"""The steps that a summary covers: the selected steps of one rank."""

from functools import cached_property

import numpy as np

from stepscope.base.arrays import Ids, Mask, Rows, Times
from stepscope.errors import TraceError
from stepscope.facts.annotate.steps.step_table import (
    events_in_steps,
    missing_steps,
    require_steps,
    steady_steps,
    step_lengths,
    windows_of,
)
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

MS = 1e-6  # milliseconds in a nanosecond


class SelectedSteps:
    """The selected steps of one rank of an annotated trace.

    Args:
        step: number of one step; None for all but a warm-up step.

    Attributes:
        steps: their rows of the table `steps`.
        count: how many steps are selected.
        capture: the manifest of the rank's capture, empty if it is none.
        warm_up: the rows of the warm-up steps that are left out.

    Raises:
        TraceError: if there is no such rank or step.
    """

    def __init__(self, trace: Trace, rank: int, step: int | None) -> None:
        self.trace, self.rank, self.capture = trace, rank, trace.metadata.capture_of(rank)
        steps = trace["steps"]
        require_steps(trace)
        of_rank = steps["rank"] == rank
        if step is not None:
            of_rank &= steps["step"] == step
        if not of_rank.any():
            raise TraceError(missing_steps(trace, rank, step))
        chosen = of_rank & steady_steps(steps) if step is None else of_rank
        self.steps, self.warm_up = steps.take(chosen), steps.take(of_rank & ~chosen)
        self.count = len(self.steps)

    def rows_of(self, table: Table) -> Table:
        """Rows of a table that belong to these steps; it has the columns `rank` and `step`."""
        of_rank = table["rank"] == self.rank
        return table.take(of_rank & np.isin(table["step"], self.steps["step"]))

    @cached_property
    def chosen_events(self) -> Mask:
        """Events of the steps, those on devices included, bool, shape (events,)."""
        return events_in_steps(self.trace, self.rank, self.steps["step"])

    @cached_property
    def windows(self) -> tuple[Times, Times]:
        """Start and end of the window of each step, ns, shape (steps,) each."""
        return windows_of(self.steps)

    @property
    def length_ns(self) -> int:
        """The length of all selected steps together, ns."""
        return int(step_lengths(self.steps).sum())

    @cached_property
    def work(self) -> Rows:
        """Device work, or operators if there is no device: event ids, shape (n,)."""
        return np.flatnonzero(self.chosen_events & (self.trace.events["kind"] >= 0))

    @cached_property
    def works_on_device(self) -> bool:
        """Whether `work` is device work."""
        track = self.trace.events["track"][self.work]
        return bool((self.trace["tracks"]["device"][track] >= 0).any())

    @cached_property
    def work_ns(self) -> Ids:
        """Duration of each piece of work, self time for operators, int64, ns, shape (n,)."""
        return self.trace.events["duration_ns" if self.works_on_device else "self_ns"][self.work]
