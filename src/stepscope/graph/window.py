"""Which steps a graph is of, and from when to when they last."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepscope.annotate.steps import ranks_with_steps, require_steps
from stepscope.annotate.warm_up import settled
from stepscope.errors import TraceError
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

_NEXT_TO = 0.05


@dataclass(frozen=True)
class Window:
    """A row of consecutive steps of one rank.

    Attributes:
        rank: whose steps.
        steps: their numbers.
        starts_ns: when each begins on the CPU, and when the last ends there; int64, (steps + 1,).
        end_ns: when the last one's device work has ended too.
    """

    rank: int
    steps: tuple[int, ...]
    starts_ns: NDArray[np.int64]
    end_ns: int

    @property
    def measured_ns(self) -> NDArray[np.int64]:
        """How long each step lasted: until the next begins, the last until its device work ends."""
        ends = np.append(self.starts_ns[1:-1], self.end_ns)
        return ends - self.starts_ns[:-1]


class _Step(NamedTuple):
    """A row of the table of steps."""

    number: int
    start_ns: int
    end_ns: int
    device_end_ns: int


def find_window(
    trace: Trace, rank: int | None = None, steps: tuple[int, int] | None = None
) -> Window:
    """The steps `first` to `last` of a rank, by default its longest row of consecutive steps.

    By default a first step that warms up is left out.

    Raises:
        TraceError: if there is no such step, the steps do not follow each other, or one has no
            length.
    """
    require_steps(trace)
    rank = ranks_with_steps(trace)[0] if rank is None else rank
    table = trace["steps"]
    known = table.take(settled(table)) if steps is None else table
    rows = [row for row in _rows(known, rank) if steps is None or _holds(row, *steps)]
    if not rows:
        raise TraceError(f"{trace.metadata.source}: {_lacking(trace, rank, steps)}")
    row = max(rows, key=len)
    if steps is not None:
        row = [step for step in row if steps[0] <= step.number <= steps[1]]
    last = row[-1]
    starts = np.array([*(step.start_ns for step in row), last.end_ns], np.int64)
    numbers = tuple(step.number for step in row)
    window = Window(rank, numbers, starts, max(last.device_end_ns, last.end_ns))
    if not window.measured_ns.all():
        raise TraceError(f"{trace.metadata.source}: expected steps that last, found one of 0 ns")
    return window


def _lacking(trace: Trace, rank: int, steps: tuple[int, int] | None) -> str:
    known = trace["steps"]["step"][trace["steps"]["rank"] == rank].tolist()
    if steps is None or not known:
        return f"expected a rank of {list(ranks_with_steps(trace))}, found {rank}"
    first, last = steps
    wanted = f"step {first}" if first == last else f"steps {first} to {last} in a row"
    return f"expected {wanted} of rank {rank}, found {known}"


def _holds(row: list[_Step], first: int, last: int) -> bool:
    numbers = [step.number for step in row]
    return first in numbers and last in numbers and first <= last


def _rows(steps: Table, rank: int) -> list[list[_Step]]:
    """Rows of steps that follow each other; each lasts until the next begins."""
    table = steps.take(steps["rank"] == rank)
    columns = (table[name].tolist() for name in ("step", "start_ns", "end_ns", "device_end_ns"))
    rows: list[list[_Step]] = []
    for step in map(_Step, *columns):
        last = rows[-1][-1] if rows else None
        if last and abs(step.start_ns - last.end_ns) <= _NEXT_TO * (step.end_ns - step.start_ns):
            rows[-1][-1] = last._replace(end_ns=step.start_ns)
            rows[-1].append(step)
        else:
            rows.append([step])
    return rows
