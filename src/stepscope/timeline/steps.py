"""The first two levels: the steps of each rank, and the stages of a step."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stepscope.timeline.index import Ids, Index, Mask
from stepscope.timeline.measure import Costs, measure
from stepscope.timeline.operation import Operation
from stepscope.timeline.step_id import StepId
from stepscope.trace.table import Table

_MANY = 2**32  # more than a trace has steps


@dataclass(frozen=True)
class Stages:
    """What a step holds.

    Attributes:
        operations: its stages, one for each unbroken run.
        costs: what they cost.
        beside: events that lie in no stage, as they span several or lie on other threads, int64.
        passed: how many events are around several stages and hold nothing but these.
    """

    operations: list[Operation]
    costs: Costs
    beside: Ids
    passed: int


def find_steps(index: Index) -> tuple[list[Operation], Costs]:
    """All steps, rank by rank, and what they cost; the CPU side is their range.

    Pieces of a trace that count their steps alike, as when files were joined, are one step.
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
    costs = replace(_on_cpu(costs, table), events=np.bincount(step_of[inside], None, len(table)))
    return operations, replace(costs, work_ns=costs.cpu_ns)


def distinct_steps(steps: Table) -> Table:
    """The steps by rank and number, each from its first start to its last end."""
    key = steps["rank"].astype(np.int64) * _MANY + steps["step"]
    _, first, number = np.unique(key, return_index=True, return_inverse=True)
    end = np.zeros(len(first), np.int64)
    np.maximum.at(end, number, steps["end_ns"])
    return steps.take(first).with_columns(end_ns=end)


def _step_of_events(index: Index, steps: Table) -> Ids:
    """Which of the distinct steps each event lies in, -1 for none, shape (events,)."""
    key = steps["rank"].astype(np.int64) * _MANY + steps["step"]
    wanted = index.rank * _MANY + index.events["step"]
    found = np.minimum(np.searchsorted(key, wanted), max(len(key) - 1, 0))
    hit = (index.events["step"] >= 0) & (np.append(key, -1)[found] == wanted)
    return np.where(hit, found, -1)


def _on_cpu(costs: Costs, table: Table) -> Costs:
    """Costs with a CPU side from a table of ranges, whatever is inside them."""
    start, end = table["start_ns"], table["end_ns"]
    return replace(costs, start_ns=start, end_ns=end, cpu_ns=end - start)


def find_stages(index: Index, step: int, rank: int) -> Stages:
    """The stages of a step, and the events that lie in none of them.

    An event belongs to the stage that it begins and ends in. One that spans several, as a frame
    around the whole step does, is passed: what is inside it is placed instead.
    """
    stages = index.trace["stages"]
    runs = np.flatnonzero((stages["step"] == step) & (stages["rank"] == rank))
    table = stages.take(runs)
    lasting = np.flatnonzero(table["end_ns"] > table["start_ns"])
    on_cpu = table.take(lasting)
    mine = (index.events["step"] == step) & (index.rank == rank)
    rows = np.flatnonzero(mine & ~index.on_device)
    run = np.full(len(index.events), -1, np.int64)
    run[rows] = _run_of(index, rows, on_cpu)
    track = _main_track(index, rows[run[rows] >= 0])
    _keep_on_main(index, run, rows, track, on_cpu)
    placed = run >= 0
    run[placed] = lasting[run[placed]]
    top = np.concatenate([index.outermost(run >= 0), _on_device_alone(index, run, mine, table)])
    spanning = rows[run[rows] < 0]
    spanning = spanning[~_is_around(index, spanning)]
    beside = np.concatenate([spanning, _launched(index, rows[run[rows] < 0], spanning)])
    operations, costs = _stage_operations(index, table, runs, top, run[top], track)
    passed = int((run[rows] < 0).sum() - len(spanning))
    return Stages(operations, costs, index.in_order(beside), passed)


def _on_device_alone(index: Index, run: Ids, mine: Mask, table: Table) -> Ids:
    """The work of stages that only a device runs; `run` is told of it."""
    work = mine & index.on_device
    found = [np.zeros(0, np.int64)]
    for row in np.flatnonzero(table["end_ns"] == table["start_ns"]).tolist():
        rows = index.in_order(np.flatnonzero(work & (index.events["stage"] == table["stage"][row])))
        run[rows] = row
        found.append(rows)
    return np.concatenate(found)


def _run_of(index: Index, rows: Ids, table: Table) -> Ids:
    """The stage that each event begins and ends in, else -1, shape (rows,)."""
    if not len(table):
        return np.full(len(rows), -1, np.int64)
    begins = np.searchsorted(table["start_ns"], index.start[rows], side="right") - 1
    latest = table["end_ns"][begins] + index.trace.metadata.tolerance_ns
    fits = (begins >= 0) & (index.end[rows] <= latest)
    return np.where(fits, begins, -1)


def _keep_on_main(index: Index, run: Ids, rows: Ids, track: int, table: Table) -> None:
    """An event on the stages' own thread that spans two and holds nothing goes to its first.

    There the stages were cut out of the thread, and such an event beside them would overlap them.
    """
    if len(table):
        loose = rows[(run[rows] < 0) & (index.track[rows] == track) & ~_is_around(index, rows)]
        at = np.searchsorted(table["start_ns"], index.start[loose], side="right") - 1
        run[loose] = np.maximum(at, 0)


def _is_around(index: Index, rows: Ids) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return index.last[rows] > index.place[rows]


def _launched(index: Index, spanning: Ids, shown: Ids) -> Ids:
    """Device work launched by events that are passed themselves."""
    passed = np.setdiff1d(spanning, shown)
    return index.launched[np.isin(index.launch[index.launched], passed)]


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
    costs = _on_cpu(costs, table)
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
