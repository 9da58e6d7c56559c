"""The first two levels: the steps of each rank, and the stages of a step."""

from dataclasses import dataclass, replace

import numpy as np

from stepscope.base.arrays import Ids
from stepscope.facts.timeline.event_index import Index, step_keys
from stepscope.facts.timeline.operation import Operation, StepId
from stepscope.facts.timeline.operation_costs import Costs, measure
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


@dataclass(frozen=True)
class Stages:
    """What a step holds.

    Attributes:
        operations: its stages, one for each unbroken run.
        costs: what they cost.
        unstaged: events that lie in no stage, as they span several or lie on other threads, int64.
        passed: how many events are around several stages and hold nothing but these.
    """

    operations: list[Operation]
    costs: Costs
    unstaged: Ids
    passed: int


def find_stages(index: Index, step: int, rank: int) -> Stages:
    """The stages of a step, and the events that lie in none of them.

    An event belongs to the stage that it begins and ends in. One that spans several, as a frame
    around the whole step does, is passed: what is inside it is placed instead.
    """
    stages, inside = index.trace["stages"], index.of_step(step, rank)
    on_device = index.on_device[inside]
    rows, works = inside[~on_device], inside[on_device]
    shown = (stages["step"] == step) & (stages["rank"] == rank)
    if not len(rows):  # a file without the CPU's side: its stages have no time there
        shown &= stages["start_ns"] == stages["end_ns"]
    runs = np.flatnonzero(shown)
    table = stages.take(runs)
    placed, track = _placed(index, rows, table)
    on_host = index.outermost(rows[placed >= 0])
    work, work_run = _on_device_alone(index, works, table)
    host_run = placed[np.searchsorted(rows, on_host)]
    top, top_run = np.concatenate([on_host, work]), np.concatenate([host_run, work_run])
    operations, costs = _stage_operations(index, table, runs, top, top_run, track)
    left = rows[placed < 0]
    spanning = left[~index.has_children(left)]
    lone = np.setdiff1d(works[index.launch[works] < 0], work)
    unstaged = np.concatenate([spanning, index.launched_by(np.setdiff1d(left, spanning))[1], lone])
    return Stages(operations, costs, index.in_order(unstaged), len(left) - len(spanning))


def _placed(index: Index, rows: Ids, table: Table) -> tuple[Ids, int]:
    """The run of a stage that each CPU event belongs to, -1 for none; and the stages' own thread.

    On that thread the stages were cut out, so an event there that spans two of them and holds
    nothing goes to the first: outside them it would overlap them.
    """
    lasting = np.flatnonzero(table["end_ns"] > table["start_ns"])
    lasts = table.take(lasting)
    run = _run_of(index, rows, lasts)
    track = _main_track(index, rows[run >= 0])
    if len(lasting):
        loose = (run < 0) & (index.track[rows] == track) & ~index.has_children(rows)
        at = np.searchsorted(lasts["start_ns"], index.start[rows], side="right") - 1
        run = np.where(loose, np.maximum(at, 0), run)
    return np.append(lasting, -1)[run], track


def _on_device_alone(index: Index, works: Ids, table: Table) -> tuple[Ids, Ids]:
    """The work of stages that only a device runs, and the run that each is of."""
    stage = index.events["stage"][works]
    runs = np.flatnonzero(table["end_ns"] == table["start_ns"])
    found = [index.in_order(works[stage == table["stage"][run]]) for run in runs.tolist()]
    rows = np.concatenate([np.zeros(0, np.int64), *found])
    return rows, np.repeat(runs, [len(one) for one in found])


def _run_of(index: Index, rows: Ids, table: Table) -> Ids:
    """The stage that each event begins and ends in, else -1, shape (rows,)."""
    if not len(table):
        return np.full(len(rows), -1, np.int64)
    begins = np.searchsorted(table["start_ns"], index.start[rows], side="right") - 1
    latest = table["end_ns"][begins] + index.trace.metadata.tolerance_ns
    fits = (begins >= 0) & (index.end[rows] <= latest)
    return np.where(fits, begins, -1)


def _stage_operations(
    index: Index, table: Table, runs: Ids, top: Ids, run: Ids, track: int
) -> tuple[list[Operation], Costs]:
    order = np.argsort(run, kind="stable")
    top, bounds = top[order], np.searchsorted(run[order], np.arange(len(table) + 1))
    span = int(table["start_ns"].min(initial=0)), 2**62
    costs = measure(index, top, bounds, span, table["stage"])
    operations = [
        Operation(f"t{row}", "stage", stage or "", rows, track=track)
        for row, stage, rows in zip(
            runs.tolist(), table.text("stage"), np.split(top, bounds)[1:-1], strict=True
        )
    ]
    busy = costs.cpu_ns
    lasts = table["end_ns"] > table["start_ns"]
    costs = on_cpu(costs, table)
    return operations, replace(
        costs,
        start_ns=np.where(lasts, costs.start_ns, -1),
        end_ns=np.where(lasts, costs.end_ns, -1),
        self_ns=np.maximum(costs.cpu_ns - busy, 0),
    )


def _main_track(index: Index, rows: Ids) -> int:
    """The thread that most of the stages' events run on, by time."""
    time = np.bincount(index.track[rows], index.end[rows] - index.start[rows] + 1.0)
    return int(time.argmax()) if len(time) else -1
