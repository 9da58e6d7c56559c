"""Open an operation: the level inside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stepscope.arrays import Ids
from stepscope.timeline.collapse_wrappers import collapsed_lanes
from stepscope.timeline.event_index import Index
from stepscope.timeline.lanes import Contents, Lane
from stepscope.timeline.level import Level, alignment, span_end
from stepscope.timeline.operation import Operation, the_trace
from stepscope.timeline.operation_costs import Costs, measure
from stepscope.timeline.operation_groups import group
from stepscope.timeline.resource_rows import Resource, find_resources, ranks_of_steps
from stepscope.timeline.stage_level import find_stages
from stepscope.timeline.step_id import StepId
from stepscope.timeline.step_level import find_steps

Path = tuple[str, ...]


@dataclass(frozen=True)
class Opened:
    """An operation to open: its path, and its start, end and runtime as its level lists them."""

    path: Path
    operation: Operation
    start_ns: int
    end_ns: int
    runtime_ns: int


def open_trace(contents: Contents, every: bool) -> Level:
    """The level of the steps: of the rank whose steps take longest, or of all."""
    operations, costs = find_steps(contents.index)
    ranks = np.array([StepId.of(one.id).rank for one in operations], np.int64)
    resources = ranks_of_steps(ranks, costs, every)
    shown = np.isin(ranks, [one.id for one in resources if one.shown])
    chosen = np.flatnonzero(shown)
    costs, hidden = costs.take(chosen), int(costs.events[~shown].sum())
    start, end = int(costs.start_ns.min(initial=2**62)), int(costs.end_ns.max(initial=0))
    opened = Opened((), the_trace(), min(start, end), end, 0)
    operations = [operations[number] for number in chosen.tolist()]
    return _level(contents.index, opened, operations, costs, resources, hidden=hidden)


def open_step(contents: Contents, opened: Opened, every: bool, tiny: float) -> Level:
    """The level of a step's stages, and of what lies in none of them."""
    index = contents.index
    stages = find_stages(index, *StepId.of(opened.operation.id))
    lanes = collapsed_lanes(contents, stages.unstaged, -1, operators=False)
    fine = _measured(index, lanes, opened)
    tracks = [one.track for one in stages.operations] + _tracks(lanes)
    both = stages.costs.followed_by(fine)
    resources = find_resources(index, np.array(tracks, np.int64), both, every)
    unstaged, hidden = _grouped(contents, lanes, fine, resources, opened, tiny)
    costs = stages.costs.followed_by(_costs(index, unstaged, opened))
    passed = stages.passed + sum(lane.passed for lane in lanes)
    operations = stages.operations + unstaged
    return _level(index, opened, operations, costs, resources, passed=passed, hidden=hidden)


def open_operation(contents: Contents, opened: Opened, every: bool, tiny: float) -> Level:
    """The level inside a stage, a call, an event or a section."""
    operation, index = opened.operation, contents.index
    lanes = _lanes(contents, operation)
    fine = _measured(index, lanes, opened)
    resources = find_resources(index, np.array(_tracks(lanes), np.int64), fine, every)
    operations, hidden = _grouped(contents, lanes, fine, resources, opened, tiny)
    return _level(
        index,
        opened,
        operations,
        _costs(index, operations, opened),
        resources,
        through=tuple(name for lane in lanes for name in lane.through),
        passed=sum(lane.passed for lane in lanes) + (operation.event >= 0),
        hidden=hidden,
    )


def _lanes(contents: Contents, operation: Operation) -> list[Lane]:
    if operation.part is not None:
        return [operation.part]
    inside = operation.event >= 0
    rows = contents.inside(operation.event) if inside else operation.rows
    single = operation.kind != "stage"  # a stage has many threads, and each shows what it runs
    in_order = contents.index.in_order(rows)
    return collapsed_lanes(contents, in_order, operation.context, operators=single)


def _tracks(lanes: list[Lane]) -> list[int]:
    return [lane.track for lane in lanes for _ in range(len(lane))]


def _measured(index: Index, lanes: list[Lane], opened: Opened) -> Costs:
    """What each operation of the lanes costs, lane by lane."""
    sizes = [np.diff(lane.bounds) for lane in lanes]
    return _measure(index, [lane.rows for lane in lanes], sizes, opened)


def _costs(index: Index, operations: list[Operation], opened: Opened) -> Costs:
    rows = [one.rows for one in operations]
    return _measure(index, rows, [np.array([len(one)]) for one in rows], opened)


def _measure(index: Index, rows: list[Ids], sizes: list[Ids], opened: Opened) -> Costs:
    nothing = np.zeros(0, np.int64)
    bounds = np.append(0, np.cumsum(np.concatenate([nothing, *sizes])))
    span = (opened.start_ns, opened.end_ns)
    return measure(index, np.concatenate([nothing, *rows]), bounds, span)


def _grouped(
    contents: Contents,
    lanes: list[Lane],
    fine: Costs,
    resources: list[Resource],
    opened: Opened,
    tiny: float,
) -> tuple[list[Operation], int]:
    """Operations of the lanes that are shown, in order of start, and how many events the rest has.

    A thread that is not shown itself is listed if it launched work on a stream that is.
    """
    shown = [one.id for one in resources if one.shown]
    seen = np.bincount(fine.parts.operation[np.isin(fine.parts.track, shown)], minlength=1)
    operations: list[Operation] = []
    first = hidden = 0
    for lane in lanes:
        positions = np.arange(first, first + len(lane))
        first += len(lane)
        if lane.track in shown or seen[positions[positions < len(seen)]].any():
            operations += group(contents, lane, fine.take(positions), opened.runtime_ns, tiny)
        else:
            hidden += int(fine.events[positions].sum())
    return sorted(operations, key=lambda one: int(contents.index.start[one.rows[0]])), hidden


def _level(
    index: Index,
    opened: Opened,
    operations: list[Operation],
    costs: Costs,
    resources: list[Resource],
    through: tuple[str, ...] = (),
    passed: int = 0,
    hidden: int = 0,
) -> Level:
    shift = alignment(costs, opened.start_ns) if opened.path else 0
    events = np.array([one.event for one in operations], np.int64)
    return Level(
        path=opened.path,
        name=opened.operation.name,
        operations=operations,
        costs=costs,
        resources=resources,
        forward=_first_known(index.forward_of, operations),
        backward=_first_known(index.backward_of, operations),
        launch=np.append(index.launch, -1)[events],
        through=through,
        passed=passed,
        hidden=hidden,
        start_ns=opened.start_ns,
        end_ns=span_end(costs, shift, opened.start_ns, opened.end_ns),
        shift_ns=shift,
    )


def _first_known(partner_of: Callable[[Ids], Ids], operations: list[Operation]) -> Ids:
    """The partner of the first row that has one, of each operation, else -1.

    Steps hold forward and backward alike, and have none.
    """
    result = np.full(len(operations), -1, np.int64)
    if operations and operations[0].kind != "step":
        partners = partner_of(np.concatenate([one.rows for one in operations]))
        number = np.repeat(np.arange(len(operations)), [len(one.rows) for one in operations])
        known = np.flatnonzero(partners >= 0)[::-1]
        result[number[known]] = partners[known]  # of several the first is written last
    return result
