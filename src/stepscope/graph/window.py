"""Which steps a graph is of, and from when to when they last."""

from __future__ import annotations

from dataclasses import dataclass

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
        row = [step for step in row if steps[0] <= step[0] <= steps[1]]
    starts = np.array([step[1] for step in row] + [row[-1][2]], np.int64)
    window = Window(rank, tuple(step[0] for step in row), starts, max(row[-1][3], row[-1][2]))
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


def _holds(row: list[tuple[int, int, int, int]], first: int, last: int) -> bool:
    numbers = [step[0] for step in row]
    return first in numbers and last in numbers and first <= last


def _rows(table: Table, rank: int) -> list[list[tuple[int, int, int, int]]]:
    """Rows of (number, start, end on the CPU, device end) of steps that follow each other."""
    rows: list[list[tuple[int, int, int, int]]] = []
    columns = (table[name].tolist() for name in ("step", "start_ns", "end_ns", "device_end_ns"))
    for mine, *facts in zip(table["rank"].tolist(), *columns, strict=True):
        number, start, end, device_end = facts
        if mine != rank:
            continue
        follows = rows and abs(start - rows[-1][-1][2]) <= _NEXT_TO * (end - start)
        if follows:
            rows[-1][-1] = (*rows[-1][-1][:2], start, rows[-1][-1][3])
            rows[-1].append((number, start, end, device_end))
        else:
            rows.append([(number, start, end, device_end)])
    return rows
