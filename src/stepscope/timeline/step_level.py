"""The first level: the steps of each rank."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stepscope.timeline.event_index import Index, step_keys
from stepscope.timeline.operation import Operation
from stepscope.timeline.operation_costs import Costs, measure
from stepscope.timeline.step_id import StepId
from stepscope.trace.table import Table


def find_steps(index: Index) -> tuple[list[Operation], Costs]:
    """All steps, rank by rank, and what they cost; the CPU side is their range.

    The device is busy as everywhere for a step: the busiest one in its window, whichever step
    launched the work. Pieces of a trace that count their steps alike, as when files were joined,
    are one step.
    """
    table = distinct_steps(index.trace["steps"])
    numbers = list(zip(table["step"].tolist(), table["rank"].tolist(), strict=True))
    inside = [index.of_step(step, rank) for step, rank in numbers]
    work = [rows[index.on_device[rows]] for rows in inside]
    bounds = np.cumsum([0, *(len(rows) for rows in work)])
    costs = measure(index, np.concatenate([np.zeros(0, np.int64), *work]), bounds, (0, 0))
    operations = [
        Operation(str(StepId(step, rank)), "step", f"step {step}", rows)
        for (step, rank), rows in zip(numbers, inside, strict=True)
    ]
    events = np.array([len(rows) for rows in inside], np.int64)
    costs = replace(on_cpu(costs, table), events=events)
    busy = table["device_busy_ns"].astype(np.int64)
    return operations, replace(costs, work_ns=costs.cpu_ns, device_ns=busy)


def distinct_steps(steps: Table) -> Table:
    """The steps by rank and number, each from its first start to its last end."""
    key = step_keys(steps["rank"], steps["step"])
    _, first, number = np.unique(key, return_index=True, return_inverse=True)
    end, busy = np.zeros((2, len(first)), np.int64)
    np.maximum.at(end, number, steps["end_ns"])
    np.add.at(busy, number, steps["device_busy_ns"])
    return steps.take(first).with_columns(end_ns=end, device_busy_ns=busy)


def on_cpu(costs: Costs, table: Table) -> Costs:
    """Costs with a CPU side from a table of ranges, whatever is inside them."""
    start, end = table["start_ns"], table["end_ns"]
    return replace(costs, start_ns=start, end_ns=end, cpu_ns=end - start)
