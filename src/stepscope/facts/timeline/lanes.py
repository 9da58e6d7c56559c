"""The contents of operations: lanes of smaller operations on each thread or stream.

Events next to each other that work for the same module, seen from the operation that is opened,
are one call of it. A call that is an event itself (a recorded range or frame) stays one; backward
work, matched models and compiled operations have no such events, and their calls are the unbroken
runs. Wrappers collapse: frames around module calls, and lone children, give way to their contents.

Source: HOTLINE appendix C.2, whose aim it serves: few operations, and each of them worth a look.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from stepscope.base.arrays import Ids, Mask
from stepscope.facts.annotate.modules.costs import numbered_blocks
from stepscope.facts.timeline.event_index import Index
from stepscope.facts.timeline.operation import TINY
from stepscope.facts.timeline.operation_labels import short_name
from stepscope.trace.row_order import begins_run, greatest_of_runs
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace


@dataclass(frozen=True, eq=False)
class Lanes:
    """Operations side by side on tracks: the lanes of several levels, one after the other."""

    context: Ids  # the module that each lane lies in, -1 for none, shape (lanes,)
    rows: Ids  # event ids in pre-order, lane by lane, none inside another, shape (rows,)
    lane_of_row: Ids  # the lane of each, ascending, shape (rows,)
    bounds: Ids  # operation i holds `rows[bounds[i]:bounds[i + 1]]`, shape (operations + 1,)
    module: Ids  # the module that each operation is a call of, -1 for others, shape (operations,)

    def __len__(self) -> int:
        return len(self.context)

    @cached_property
    def first_row(self) -> Ids:
        """The first event of each operation, shape (operations,)."""
        return self.rows[self.bounds[:-1]]

    @cached_property
    def lane(self) -> Ids:
        """The lane of each operation, ascending, shape (operations,)."""
        return self.lane_of_row[self.bounds[:-1]]

    @cached_property
    def first(self) -> Ids:
        """Lane i holds the operations from `first[i]` to before `first[i + 1]`, (lanes + 1,)."""
        return np.searchsorted(self.lane, np.arange(len(self) + 1))


class Contents:
    """Puts events of an annotated trace together into calls, and names them.

    Attributes:
        modules: the tree of modules that are called.
        blocks: code of each module's block, see `numbered_blocks`; the last belongs to module -1.
        recompute: 1 for forward work repeated in backward, int64, shape (events,).
    """

    def __init__(self, trace: Trace) -> None:
        self.trace, self.index = trace, Index(trace)
        self.modules = ModuleTree(trace["modules"])
        self.blocks: Ids = np.append(numbered_blocks(trace["modules"]), -1)
        self._module: Ids = trace.events["module"].astype(np.int64)
        self.recompute: Ids = trace.events["recompute"].astype(np.int64)
        self._names = trace.events.text("name")

    def lanes(self, rows: Ids, lane: Ids, context: Ids) -> Lanes:
        """Events in pre-order, lane by lane, none inside another, as calls and single events.

        Lanes ascend, with at least one event in each.
        """
        module = self.modules.seen_from(context[lane], self._module[rows])
        module[self.index.on_device[rows] & (self.index.events["scope"][rows] < 0)] = -1
        called = self.index.is_call[rows] & (module >= 0)
        module[called] = self._module[rows[called]]
        alone = (module < 0) | called
        again = self.recompute[rows]
        starts = np.flatnonzero(begins_run(lane, module, again, np.where(alone, np.arange(len(rows)), -1)))
        return Lanes(context, rows, lane, np.append(starts, len(rows)), module[starts])

    def events(self, lanes: Lanes) -> Ids:
        """The event that each operation is, -1 for a call that is a run of events."""
        is_event = (lanes.module < 0) | self.index.is_call[lanes.first_row]
        return np.where((np.diff(lanes.bounds) == 1) & is_event, lanes.first_row, -1)

    def contexts_in(self, lanes: Lanes) -> Ids:
        """The module that each operation's inside lies in."""
        seen = np.where(lanes.module >= 0, lanes.module, lanes.context[lanes.lane])
        return np.where(self.index.is_call[lanes.first_row], self._module[lanes.first_row], seen)

    def names(self, lanes: Lanes) -> tuple[list[str], Ids]:
        """Short names: the distinct ones, and the number of each operation's, (operations,)."""
        context, modules = lanes.context[lanes.lane], len(self.blocks)
        key = np.where(
            lanes.module >= 0, -1 - lanes.module - modules * (context + 1), self._names.codes[lanes.first_row]
        )
        _, where, which = np.unique(key, return_index=True, return_inverse=True)
        strings: dict[str, int] = {}
        code = [strings.setdefault(self.name(lanes, one), len(strings)) for one in where.tolist()]
        return list(strings), np.array(code, np.int64)[which]

    def name(self, lanes: Lanes, operation: int) -> str:
        """An operation's short name."""
        module = int(lanes.module[operation])
        if module >= 0:
            return self.modules.name_in(module, int(lanes.context[lanes.lane[operation]]))
        return self.event_name(int(lanes.first_row[operation]))

    def event_name(self, event: int) -> str:
        """An event's short name."""
        return short_name(self._names[event] or "")

    def name_codes(self, lanes: Lanes) -> Ids:
        """A number for each operation that those of one name share, shape (operations,)."""
        return np.where(lanes.module >= 0, -1 - lanes.module, self._names.codes[lanes.first_row])


class ModuleTree:
    """The modules that are called, as a tree; containers that never are (`ModuleList`) left out."""

    def __init__(self, modules: Table) -> None:
        self.paths = [path or "" for path in modules.text("path")]
        self.names = [name or "" for name in modules.text("name")]
        self.classes = [name or "" for name in modules.text("class")]
        self.parent = _called_parents(modules["parent"].tolist(), modules["calls"].tolist())
        # The last of these is of module -1, which has no parent.
        self._parent = np.append(self.parent, -1)
        # Each module, its parent, its parent's parent …, -1 beyond the root, (depths, modules + 1).
        levels = [np.append(np.arange(len(self.parent)), -1)]
        while (levels[-1] >= 0).any():
            levels.append(self._parent[levels[-1]])
        self._above = np.array(levels)
        self._depth = (self._above >= 0).sum(axis=0) - 1
        inside = (modules["calls"] > 0) & (self.parent >= 0)
        self._called_inside = np.bincount(self.parent[inside], minlength=len(self._parent))

    def seen_from(self, context: Ids, module: Ids) -> Ids:
        """The child of each `context` that a `module` is or lies in, -1 where there is none; (n,).

        The context -1 is the parent of the roots.
        """
        above = self._depth[module] - self._depth[context] - 1
        found = self._above[np.maximum(above, 0), module]
        return np.where((above >= 0) & (module >= 0) & (self._parent[found] == context), found, -1)

    def is_only_one_in(self, module: Ids, context: Ids) -> Mask:
        """Whether each `context` is a module that calls this `module` and no other."""
        inside = (context >= 0) & (module >= 0) & (self._parent[module] == context)
        return inside & (self._called_inside[context] == 1)

    def name_in(self, module: int, context: int) -> str:
        """A module's path from `context` on, or its class where it has no name."""
        path, around = self.paths[module], self.paths[context] if context >= 0 else ""
        inner = path[len(around) + 1 :] if around and path.startswith(f"{around}.") else path
        return inner or self.classes[module] or "model"


def _called_parents(parent: list[int], calls: list[int]) -> Ids:
    result = np.array(parent, np.int64)
    for module, above in enumerate(parent):
        if above >= 0 and not calls[above]:
            result[module] = result[above]  # parents come first, so this one is settled
    return result


@dataclass(frozen=True, eq=False)
class LaneEvents:
    """Events of some lanes: ids in pre-order, lane by lane, and the lane of each, ascending."""

    rows: Ids
    lane: Ids

    def take(self, chosen: Mask) -> "LaneEvents":
        """The chosen events, bool, shape (rows,)."""
        return LaneEvents(self.rows[chosen], self.lane[chosen])


@dataclass(frozen=True, eq=False)
class Collapse:
    """How the wrappers of lanes are collapsed: what was opened, left out and passed by now."""

    contents: Contents  # of the trace
    context: Ids  # the module that each lane lies in by now, -1 for none, shape (lanes,)
    operators: Mask  # whether a lane opens operators too, shape (lanes,)
    passed: Ids  # how many events of each lane were opened or left out, shape (lanes,)
    # names of the operations of each lane that were opened, each once, in order
    through: dict[int, dict[str, None]] = field(default_factory=dict)

    def open(self, lane: int, name: str) -> None:
        """Note that an operation of a lane gives way to its contents."""
        self.through.setdefault(lane, {})[name] = None

    def lanes(self, held: LaneEvents) -> Lanes:
        """These events as operations; the lanes are numbered as in the whole."""
        return self.contents.lanes(held.rows, held.lane, self.context)

    def in_order(self, *parts: LaneEvents) -> LaneEvents:
        """Events of several parts together, in pre-order, lane by lane."""
        rows = np.concatenate([part.rows for part in parts])
        lane = np.concatenate([part.lane for part in parts])
        order = np.lexsort((self.contents.index.place[rows], lane))
        return LaneEvents(rows[order], lane[order])


def collapsed_lanes(
    contents: Contents, rows: Ids, lane: Ids, context: Ids, collapses: Mask, operators: Mask
) -> tuple[Lanes, Collapse]:
    """The lanes of some events, without wrappers, and what was opened to get there.

    Frames around calls of modules give way to these. So does an operation that fills its lane, and the one
    module that a wrapper calls (checkpointing's, DDP's), if its siblings launch no device work.

    Args:
        rows: event ids, none inside another, in pre-order lane by lane, shape (rows,).
        lane: of each, ascending, shape (rows,).
        context: the module that each lane lies in, -1 for none, shape (lanes,).
        collapses: whether a lane may have wrappers, shape (lanes,).
        operators: open operators too, not only frames, annotations and calls of modules, (lanes,).
    """
    work = Collapse(contents, context.copy(), operators, np.zeros(len(context), np.int64))
    held = LaneEvents(rows, lane)
    may = collapses[lane]
    done, held = [held.take(~may)], _without_frames(work, held.take(may))
    while len(held.rows):
        lanes = work.lanes(held)
        wrapper = _wrappers(work, lanes)
        wraps = np.isin(held.lane, lanes.lane[wrapper])
        done.append(_without_tiny_frames(work, held.take(~wraps)))
        held = _without_frames(work, _opened(work, lanes, wrapper, held.take(wraps)))
    return work.lanes(work.in_order(*done)), work


def _without_frames(work: Collapse, held: LaneEvents) -> LaneEvents:
    """Frames and annotations around calls of modules, replaced by what is inside them."""
    kept = [held]
    while (around := _frames_around_calls(work.contents, kept[-1].rows)).any():
        frames = kept[-1].take(around)
        kept[-1] = kept[-1].take(~around)
        for frame, lane in zip(frames.rows.tolist(), frames.lane.tolist(), strict=True):
            work.open(lane, work.contents.event_name(frame))
        np.add.at(work.passed, frames.lane, 1)
        of, inner = work.contents.index.children(frames.rows)
        kept.append(LaneEvents(inner, frames.lane[of]))
    return work.in_order(*kept) if len(kept) > 1 else held


def _frames_around_calls(contents: Contents, rows: Ids) -> Mask:
    first, end = contents.index.inside(rows)
    calls = contents.index.calls_before[end] - contents.index.calls_before[first]
    plain = ~contents.index.is_call[rows] & ~contents.index.launches_itself[rows]
    return contents.index.surrounds[rows] & plain & (calls > 0)


def _without_tiny_frames(work: Collapse, held: LaneEvents) -> LaneEvents:
    """Frames in which nothing works (`__getattr__`) left out, if all of a lane's are tiny."""
    index, rows = work.contents.index, held.rows
    first, end = index.inside(rows)
    works = index.work_before[end] > index.work_before[first]
    launches = np.greater(*index.launches_inside(rows)[::-1])
    tiny = index.is_frame[rows] & ~index.is_call[rows] & ~works & ~launches
    lanes = len(work.context)
    kept = np.bincount(held.lane[~tiny], minlength=lanes) > 0
    time = np.bincount(held.lane, index.duration[rows], lanes)
    tiny_time = np.bincount(held.lane[tiny], index.duration[rows[tiny]], lanes)
    out = tiny & (kept & (tiny_time <= TINY * time))[held.lane]
    np.add.at(work.passed, held.lane[out], (end - first)[out])
    return held.take(~out)


def _wrappers(work: Collapse, lanes: Lanes) -> Ids:
    """The operations that wrap the work of their lanes, and can be opened; at most one of a lane.

    Each takes all but a tiny share of the lane's time, or is the one module that a wrapper calls.
    """
    contents, index = work.contents, work.contents.index
    time = np.add.reduceat(index.duration[lanes.rows], lanes.bounds[:-1])
    launches = np.greater(*index.launches_inside(lanes.rows)[::-1])
    launches = np.logical_or.reduceat(launches, lanes.bounds[:-1])
    on_device = np.bincount(lanes.lane_of_row, index.on_device[lanes.rows], len(lanes)) > 0
    number = greatest_of_runs(time, np.flatnonzero(begins_run(lanes.lane)))
    lane, module = lanes.lane[number], lanes.module
    others = np.ones(len(time), np.bool_)
    others[number] = False
    rest, whole = (np.bincount(lanes.lane, part, len(lanes)) for part in (time * others, time))
    blocked = np.bincount(lanes.lane, others & (launches | (module >= 0)), len(lanes)) > 0
    fills = (rest <= TINY * whole)[lane]
    wrapped = contents.modules.is_only_one_in(module[number], lanes.context[lane])
    opens = _opens(contents, contents.events(lanes)[number], work.operators[lane])
    return number[(fills | wrapped) & ~(blocked | on_device)[lane] & opens]


def _opens(contents: Contents, events: Ids, operators: Mask) -> Mask:
    """Whether operations can be opened in place: events, or -1 for runs of events, which can."""
    index = contents.index
    around = index.surrounds[events] | index.is_call[events]
    inside = index.has_children(events) & ~index.launches_itself[events]
    first, end = index.launches_inside(events)
    # An operator works itself if most of its time is its own, and it launches nothing.
    works = ~around & (end == first) & (2 * index.events["self_ns"][events] > index.duration[events])
    return (events < 0) | ((operators | around) & inside & ~works)


def _opened(work: Collapse, lanes: Lanes, wrappers: Ids, held: LaneEvents) -> LaneEvents:
    """Lanes with one operation each replaced by what is directly inside it.

    The inside of a run of events is the same events, seen from its module.
    """
    events, lane = work.contents.events(lanes)[wrappers], lanes.lane[wrappers]
    for one, of in zip(wrappers.tolist(), lane.tolist(), strict=True):
        work.open(of, work.contents.name(lanes, one))
    single = events >= 0
    work.context[lane] = work.contents.contexts_in(lanes)[wrappers]
    work.passed[lane[single]] += 1
    opened = np.full(len(lanes), -1, np.int64)
    opened[lane] = events
    of, inner = work.contents.index.children(events[single])
    return work.in_order(held.take(held.rows != opened[held.lane]), LaneEvents(inner, lane[single][of]))
