"""The steps that a graph covers, and their begin and end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from stepscope.annotate.steps.step_table import (
    no_such_rank,
    no_such_steps,
    ranks_with_steps,
    require_steps,
    steady_steps,
)
from stepscope.annotate.steps.windows import unrecorded_work_end
from stepscope.arrays import Times
from stepscope.errors import TraceError
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

_MAX_GAP = 0.05
_COLUMNS = "step", "start_ns", "end_ns", "device_end_ns", "window_start_ns"


@dataclass(frozen=True)
class Window:
    """Consecutive steps of one rank.

    Attributes:
        rank: the rank of the steps.
        steps: step numbers.
        starts_ns: when each step begins on the CPU, and when the last ends there; int64, shape
            (steps + 1,).
        begin_ns: when the work of earlier steps has ended too, and the first step's window begins.
        end_ns: when the last step's device work has ended too.
    """

    rank: int
    steps: tuple[int, ...]
    starts_ns: Times
    begin_ns: int
    end_ns: int

    @property
    def measured_ns(self) -> Times:
        """Measured length of each step: until the next begins; the last, until its work ends."""
        return np.diff([self.begin_ns, *self.starts_ns[1:-1], self.end_ns])

    @property
    def lead_lost_ns(self) -> int:
        """How much less the CPU is ahead of the device at the end than at the beginning."""
        before, after = self.begin_ns - self.starts_ns[0], self.end_ns - self.starts_ns[-1]
        return max(0, int(before - after))

    @property
    def waits_for_earlier_work(self) -> bool:
        """Whether the first step's window begins after the step begins on the CPU."""
        return self.begin_ns > int(self.starts_ns[0])


class _Step(NamedTuple):
    """A row of the trace's table `steps`."""

    number: int
    start_ns: int
    end_ns: int
    device_end_ns: int
    window_start_ns: int


def find_window(
    trace: Trace, rank: int | None = None, steps: tuple[int, int] | None = None
) -> Window:
    """The window of some steps of a rank, by default its longest run of consecutive steps.

    By default, a first step that warms up, or waits for work that is not recorded, is left out.

    Raises:
        TraceError: if a step is missing, the steps are not consecutive, or a step has no length.
    """
    require_steps(trace)
    rank = ranks_with_steps(trace)[0] if rank is None else rank
    table = trace["steps"]
    known = table.take(steady_steps(table)) if steps is None else table
    runs = [run for run in _runs(known, rank) if steps is None or _contains(run, *steps)]
    if not runs:
        raise TraceError(f"{trace.metadata.source}: {_missing(trace, rank, steps)}")
    run = max(runs, key=len)
    if steps is not None:
        run = [step for step in run if steps[0] <= step.number <= steps[1]]
    elif len(run) > 1 and run[0].start_ns < unrecorded_work_end(trace, rank):
        run = run[1:]
    last = run[-1]
    starts = np.array([*(step.start_ns for step in run), last.end_ns], np.int64)
    numbers = tuple(step.number for step in run)
    end_ns = max(last.device_end_ns, last.end_ns)
    window = Window(rank, numbers, starts, run[0].window_start_ns, end_ns)
    if not window.measured_ns.all():
        raise TraceError(f"{trace.metadata.source}: a step has no length")
    return window


def _missing(trace: Trace, rank: int, steps: tuple[int, int] | None) -> str:
    if steps is None or rank not in ranks_with_steps(trace):
        return no_such_rank(trace, rank)
    first, last = steps
    wanted = f"step {first}" if first == last else f"steps {first} to {last} in a row"
    return no_such_steps(trace, rank, wanted)


def _contains(run: list[_Step], first: int, last: int) -> bool:
    numbers = [step.number for step in run]
    return first in numbers and last in numbers and first <= last


def _runs(steps: Table, rank: int) -> list[list[_Step]]:
    """Runs of consecutive steps; each step lasts until the next begins."""
    table = steps.take(steps["rank"] == rank)
    columns = (table[name].tolist() for name in _COLUMNS)
    runs: list[list[_Step]] = []
    for step in map(_Step, *columns):
        last = runs[-1][-1] if runs else None
        if last and abs(step.start_ns - last.end_ns) <= _MAX_GAP * (step.end_ns - step.start_ns):
            runs[-1][-1] = last._replace(end_ns=step.start_ns)
            runs[-1].append(step)
        else:
            runs.append([step])
    return runs
