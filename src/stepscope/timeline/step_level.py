"""The first level: the steps of each rank."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stepscope.arrays import Ids
from stepscope.timeline.event_index import Index
from stepscope.timeline.operation import Operation
from stepscope.timeline.operation_costs import Costs, measure
from stepscope.timeline.step_id import StepId
from stepscope.trace.table import Table

_MANY = 2**32  # more than a trace has steps


def find_steps(index: Index) -> tuple[list[Operation], Costs]:
    """All steps, rank by rank, and what they cost; the CPU side is their range.

    The device is busy as everywhere for a step: the busiest one in its window, whichever step
    launched the work. Pieces of a trace that count their steps alike, as when files were joined,
    are one step.
    """
    table = distinct_steps(index.trace["steps"])
    step_of = _step_of_events(index, table)
    order = np.argsort(step_of, kind="stable")
    inside = order[step_of[order] >= 0]
    work = inside[index.on_device[inside]]
    bounds = np.searchsorted(step_of[work], np.arange(len(table) + 1))
    costs = measure(index, work, bounds, (0, 0))
    ends = np.searchsorted(step_of[inside], np.arange(len(table)), side="right")
    operations = [
        Operation(str(StepId(step, rank)), "step", f"step {step}", rows)
        for step, rank, rows in zip(
            table["step"], table["rank"], np.split(inside, ends)[:-1], strict=True
        )
    ]
    costs = replace(on_cpu(costs, table), events=np.bincount(step_of[inside], None, len(table)))
    busy = table["device_busy_ns"].astype(np.int64)
    return operations, replace(costs, work_ns=costs.cpu_ns, device_ns=busy)


def distinct_steps(steps: Table) -> Table:
    """The steps by rank and number, each from its first start to its last end."""
    key = steps["rank"].astype(np.int64) * _MANY + steps["step"]
    _, first, number = np.unique(key, return_index=True, return_inverse=True)
    end, busy = np.zeros((2, len(first)), np.int64)
    np.maximum.at(end, number, steps["end_ns"])
    np.add.at(busy, number, steps["device_busy_ns"])
    return steps.take(first).with_columns(end_ns=end, device_busy_ns=busy)


def _step_of_events(index: Index, steps: Table) -> Ids:
    """Which of the distinct steps each event lies in, -1 for none, shape (events,)."""
    key = steps["rank"].astype(np.int64) * _MANY + steps["step"]
    wanted = index.rank * _MANY + index.events["step"]
    found = np.minimum(np.searchsorted(key, wanted), max(len(key) - 1, 0))
    hit = (index.events["step"] >= 0) & (np.append(key, -1)[found] == wanted)
    return np.where(hit, found, -1)


def on_cpu(costs: Costs, table: Table) -> Costs:
    """Costs with a CPU side from a table of ranges, whatever is inside them."""
    start, end = table["start_ns"], table["end_ns"]
    return replace(costs, start_ns=start, end_ns=end, cpu_ns=end - start)
