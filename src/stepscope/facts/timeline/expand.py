"""Open operations: the levels inside them, many at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepscope.base.arrays import Ids
from stepscope.facts.timeline.event_index import Index, values_at
from stepscope.facts.timeline.lanes import Collapse, Contents, Lanes, collapsed_lanes
from stepscope.facts.timeline.level import (
    Level,
    ResourceRow,
    Resources,
    alignments,
    find_resources,
    ranks_of_steps,
    span_ends,
)
from stepscope.facts.timeline.operation import Operation, StepId
from stepscope.facts.timeline.operation_costs import Costs, measure
from stepscope.facts.timeline.sections import group
from stepscope.trace.row_order import begins_run, last_begun
from stepscope.trace.sets import mask_of
from stepscope.trace.table import Table

Path = tuple[str, ...]


@dataclass(frozen=True)
class Opened:
    """An operation to open: its path, and what its level says of it."""

    path: Path
    operation: Operation
    start_ns: int
    end_ns: int
    runtime_ns: int
    events: int


def open_trace(contents: Contents, every: bool, rank: int | None = None) -> Level:
    """The level of the steps: of a rank, by default of the one whose steps take longest, or of all."""
    operations, costs = find_steps(contents.index)
    ranks = np.array([StepId.of(one.id).rank for one in operations], np.int64)
    resources = ranks_of_steps(ranks, costs, every, rank)
    shown = np.isin(ranks, [one.id for one in resources if one.shown])
    chosen = np.flatnonzero(shown)
    costs, hidden = costs.take(chosen), int(costs.events[~shown].sum())
    start, end = int(costs.start_ns.min(initial=2**62)), int(costs.end_ns.max(initial=0))
    around = Operation("", "trace", "trace", _zeros(0))
    opened = Opened((), around, min(start, end), end, 0, len(contents.index.order))
    listed = _Listed([operations[number] for number in chosen.tolist()], _zeros(len(chosen)))
    return _levels(contents.index, [opened], listed, costs, [resources], hidden=[hidden])[0]


def open_step(contents: Contents, opened: Opened, every: bool, tiny: float) -> Level:
    """The level of a step's stages, and of what lies in none of them."""
    index = contents.index
    stages = find_stages(index, *StepId.of(opened.operation.id))
    loose = _zeros(len(stages.unstaged))
    inside = _Inside.of(contents, [opened], stages.unstaged, loose, np.array([-1]), operators=False)
    fine = inside.costs(index)
    tracks = np.append([one.track for one in stages.operations], inside.tracks(index))
    both = Costs.joined([stages.costs, fine])
    resources = find_resources(index, _zeros(len(tracks)), tracks.astype(np.int64), both, every)
    unstaged, hidden = inside.grouped(contents, fine, resources, tiny)
    costs = Costs.joined([stages.costs, _costs(index, unstaged, [opened])])
    listed = _Listed(stages.operations + unstaged.operations, _zeros(len(costs.cpu_ns)))
    passed = [stages.passed + int(inside.collapse.passed.sum())]
    return _levels(index, [opened], listed, costs, resources.split(1), passed=passed, hidden=hidden)[0]


def open_operations(contents: Contents, opened: Sequence[Opened], every: bool, tiny: float) -> list[Level]:
    """The level inside each of some stages, calls, events or sections."""
    index = contents.index
    rows, level = _rows_inside(index, [opening.operation for opening in opened])
    context = np.array([opening.operation.context for opening in opened], np.int64)
    inside = _Inside.of(contents, opened, rows, level, context, operators=True)
    fine = inside.costs(index)
    resources = find_resources(index, inside.level, inside.tracks(index), fine, every)
    listed, hidden = inside.grouped(contents, fine, resources, tiny)
    passed = (inside.passed() + [opening.operation.event >= 0 for opening in opened]).tolist()
    costs, tracks = _costs(index, listed, opened), resources.split(len(opened))
    return _levels(index, opened, listed, costs, tracks, inside.through(), passed, hidden)


def _rows_inside(index: Index, operations: list[Operation]) -> tuple[Ids, Ids]:
    """The events directly inside each operation, in pre-order, and which operation's they are."""
    event = np.array([one.event for one in operations], np.int64)
    single = np.flatnonzero(event >= 0)
    parts = [one.rows for one in operations if one.event < 0]
    groups = np.flatnonzero(event < 0)
    of_child, children = index.children(event[single])
    of_work, work = index.launched_by(event[single])
    rows = np.concatenate([*parts, children, work])
    of = np.repeat(groups, [len(part) for part in parts])
    of = np.concatenate([of, single[of_child], single[of_work]]).astype(np.int64)
    order = np.lexsort((index.place[rows], of))
    return rows[order].astype(np.int64), of[order]


@dataclass(frozen=True, eq=False)
class _Listed:
    """Operations, level by level, and the level of each, ascending."""

    operations: list[Operation]
    level: Ids


@dataclass(frozen=True, eq=False)
class _Inside:
    """What is inside operations that are opened: the lanes of each."""

    opened: Sequence[Opened]  # the operations
    lanes: Lanes  # in them, without wrappers
    collapse: Collapse  # what was opened on the way, and passed
    level_of_lane: Ids  # which of `opened` each lane is in, ascending, shape (lanes,)

    @classmethod
    def of(
        cls,
        contents: Contents,
        opened: Sequence[Opened],
        rows: Ids,
        level: Ids,
        context: Ids,
        operators: bool,
    ) -> "_Inside":
        """The lanes of events, a lane for each track of a level.

        Args:
            rows: event ids in pre-order, level by level.
            level: which of `opened` each is in.
            context: the module that the inside of each of `opened` lies in.
            operators: open operators in place, except where a stage is opened: it has many
                threads, and each shows what it runs.
        """
        first = np.flatnonzero(begins_run(level, contents.index.track[rows]))
        lane = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(rows))))
        of = level[first]
        opens = np.array([operators and opening.operation.kind != "stage" for opening in opened])[of]
        collapses = np.array([opening.operation.spread is None for opening in opened])[of]
        return cls(opened, *collapsed_lanes(contents, rows, lane, context[of], collapses, opens), of)

    @property
    def level(self) -> Ids:
        return self.level_of_lane[self.lanes.lane]

    def tracks(self, index: Index) -> Ids:
        return index.track[self.lanes.first_row].astype(np.int64)

    def costs(self, index: Index) -> Costs:
        return measure(index, self.lanes.rows, self.lanes.bounds, _spans(self.opened, self.level))

    def passed(self) -> Ids:
        """How many raw events of each level are opened in place, or left out."""
        return np.bincount(self.level_of_lane, self.collapse.passed, len(self.opened)).astype(np.int64)

    def through(self) -> list[tuple[str, ...]]:
        """Names of the operations of each level that are opened in place."""
        found: list[list[str]] = [[] for _ in self.opened]
        for lane, names in sorted(self.collapse.through.items()):
            found[self.level_of_lane[lane]] += names
        return [tuple(names) for names in found]

    def grouped(
        self, contents: Contents, fine: Costs, resources: Resources, tiny: float
    ) -> tuple[_Listed, list[int]]:
        """Operations of the lanes that are shown, by start, and how many events the rest has.

        A thread that is not shown itself is listed if it launched work on a stream that is.
        """
        lanes, parts = self.lanes, fine.parts
        shown = mask_of(lanes.lane[resources.lists(self.level, self.tracks(contents.index))], len(lanes))
        seen = resources.lists(self.level[parts.operation], parts.track)
        shown[lanes.lane[parts.operation[seen]]] = True
        listed = shown[lanes.lane]
        hidden = np.bincount(self.level[~listed], fine.events[~listed], len(self.opened))
        kept = np.cumsum(shown) - 1
        rows = shown[lanes.lane_of_row]
        left = contents.lanes(lanes.rows[rows], kept[lanes.lane_of_row[rows]], lanes.context[shown])
        level = self.level_of_lane[shown]
        parent = np.array([opening.runtime_ns for opening in self.opened], np.int64)[level]
        operations, lane = group(contents, left, fine.take(np.flatnonzero(listed)), parent, tiny)
        return _by_start(contents.index, operations, level[lane]), hidden.astype(np.int64).tolist()


def _by_start(index: Index, operations: list[Operation], level: Ids) -> _Listed:
    start = index.start[np.array([one.rows[0] for one in operations], np.int64)]
    order = np.lexsort((start, level))
    return _Listed([operations[number] for number in order.tolist()], level[order])


def _costs(index: Index, listed: _Listed, opened: Sequence[Opened]) -> Costs:
    rows = [one.rows for one in listed.operations]
    bounds = np.append(0, np.cumsum([len(one) for one in rows], dtype=np.int64))
    return measure(index, _joined(rows), bounds, _spans(opened, listed.level))


def _spans(opened: Sequence[Opened], level: Ids) -> tuple[Ids, Ids]:
    """Start and end of the opened operation around each operation of these levels."""
    start = np.array([opening.start_ns for opening in opened], np.int64)
    return start[level], np.array([opening.end_ns for opening in opened], np.int64)[level]


def _levels(
    index: Index,
    opened: Sequence[Opened],
    listed: _Listed,
    costs: Costs,
    resources: list[list[ResourceRow]],
    through: Sequence[tuple[str, ...]] = ((),),
    passed: Sequence[int] = (0,),
    hidden: Sequence[int] = (0,),
) -> list[Level]:
    start, end = _spans(opened, np.arange(len(opened)))
    inner = np.array([bool(opening.path) for opening in opened])
    shift = np.where(inner, alignments(costs, listed.level, start), 0)
    ends = span_ends(costs, listed.level, shift, start, end).tolist()
    event = np.array([one.event for one in listed.operations], np.int64)
    partners = (
        _first_known(index.forward_of, listed.operations),
        _first_known(index.backward_of, listed.operations),
        values_at(index.launch, event),
    )
    bounds = np.searchsorted(listed.level, np.arange(len(opened) + 1))
    columns = [np.split(one, bounds[1:-1]) for one in partners]
    return [
        Level(
            path=one.path,
            name=one.operation.name,
            operations=listed.operations[bounds[number] : bounds[number + 1]],
            costs=own,
            resources=resources[number],
            forward=columns[0][number],
            backward=columns[1][number],
            launch=columns[2][number],
            through=through[number],
            passed=passed[number],
            hidden=hidden[number],
            start_ns=one.start_ns,
            end_ns=ends[number],
            shift_ns=int(shift[number]),
        )
        for number, (one, own) in enumerate(zip(opened, costs.split(bounds), strict=True))
    ]


def _first_known(partner_of: Callable[[Ids], Ids], operations: list[Operation]) -> Ids:
    """The partner of the first row that has one, of each operation, else -1.

    Steps hold forward and backward alike, and have none.
    """
    result = np.full(len(operations), -1, np.int64)
    if operations and operations[0].kind != "step":
        partners = partner_of(_joined([one.rows for one in operations]))
        number = np.repeat(np.arange(len(operations)), [len(one.rows) for one in operations])
        known = np.flatnonzero(partners >= 0)[::-1]
        result[number[known]] = partners[known]  # of several the first is written last
    return result


def _joined(rows: list[Ids]) -> Ids:
    return np.concatenate([np.zeros(0, np.int64), *rows])


def _zeros(count: int) -> Ids:
    return np.zeros(count, np.int64)


# -- the first two levels: steps and stages


def find_steps(index: Index) -> tuple[list[Operation], Costs]:
    """All steps, rank by rank, and what they cost; the CPU side is their range.

    The device is busy as everywhere for a step: the busiest one in its window, whichever step
    launched the work.
    """
    table = index.trace["steps"]
    numbers = list(zip(table["step"].tolist(), table["rank"].tolist(), strict=True))
    inside = [index.of_step(step, rank) for step, rank in numbers]
    work = [rows[index.on_device[rows]] for rows in inside]
    bounds = np.cumsum([0, *(len(rows) for rows in work)])
    costs = measure(index, _joined(work), bounds, (0, 0))
    operations = [
        Operation(str(StepId(step, rank)), "step", f"step {step}", rows)
        for (step, rank), rows in zip(numbers, inside, strict=True)
    ]
    costs = replace(on_cpu(costs, table), events=np.array([len(rows) for rows in inside], np.int64))
    busy = table["device_busy_ns"].astype(np.int64)
    return operations, replace(costs, work_ns=costs.cpu_ns, device_ns=busy)


def on_cpu(costs: Costs, table: Table) -> Costs:
    """Costs with a CPU side from a table of ranges, whatever is inside them."""
    start, end = table["start_ns"], table["end_ns"]
    return replace(costs, start_ns=start, end_ns=end, cpu_ns=end - start)


@dataclass(frozen=True)
class Stages:
    """What a step holds."""

    operations: list[Operation]  # its stages, one for each unbroken run
    costs: Costs  # what they cost
    unstaged: Ids  # events that lie in no stage, as they span several or lie on other threads, int64
    passed: int  # how many events are around several stages and hold nothing but these


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
    staged = rows[run >= 0]
    spent = np.bincount(index.track[staged], index.end[staged] - index.start[staged] + 1.0)
    track = int(spent.argmax()) if len(spent) else -1
    if len(lasting):
        loose = (run < 0) & (index.track[rows] == track) & ~index.has_children(rows)
        run = np.where(loose, np.maximum(last_begun(lasts["start_ns"], index.start[rows]), 0), run)
    return np.append(lasting, -1)[run], track


def _on_device_alone(index: Index, works: Ids, table: Table) -> tuple[Ids, Ids]:
    """The work of stages that only a device runs, and the run that each is of."""
    stage = index.events["stage"][works]
    runs = np.flatnonzero(table["end_ns"] == table["start_ns"])
    found = [index.in_order(works[stage == table["stage"][run]]) for run in runs.tolist()]
    return _joined(found), np.repeat(runs, [len(one) for one in found])


def _run_of(index: Index, rows: Ids, table: Table) -> Ids:
    """The stage that each event begins and ends in, else -1, shape (rows,)."""
    begins = last_begun(table["start_ns"], index.start[rows])
    latest = np.append(table["end_ns"], 0)[begins] + index.trace.metadata.tolerance_ns
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
