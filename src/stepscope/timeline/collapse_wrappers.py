"""Collapse wrappers: replace frames around module calls, and lone children, by their contents.

Source: HOTLINE appendix C.2, whose aim it serves: few operations, and each of them worth a look.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from stepscope.arrays import Ids, Mask
from stepscope.timeline.lanes import Contents, Lanes
from stepscope.timeline.sections import TINY


@dataclass(frozen=True, eq=False)
class LaneEvents:
    """Events of some lanes: ids in pre-order, lane by lane, and the lane of each, ascending."""

    rows: Ids
    lane: Ids

    def take(self, chosen: Mask) -> LaneEvents:
        """The chosen events, bool, shape (rows,)."""
        return LaneEvents(self.rows[chosen], self.lane[chosen])


@dataclass(frozen=True, eq=False)
class Collapse:
    """How the wrappers of lanes are collapsed, while it is being done.

    Attributes:
        contents: of the trace.
        context: the module that each lane lies in by now, -1 for none, shape (lanes,).
        operators: whether a lane opens operators too, shape (lanes,).
        passed: how many events of each lane were opened or left out, shape (lanes,).
        through: names of the operations of each lane that were opened, each once, in order.
    """

    contents: Contents
    context: Ids
    operators: Mask
    passed: Ids
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


@dataclass(frozen=True, eq=False)
class Collapsed:
    """Lanes without wrappers.

    Attributes:
        lanes: the operations that are left.
        passed: how many raw events of each lane are not in them, shape (lanes,).
        through: names of the operations of each lane that were opened on the way, by its number.
    """

    lanes: Lanes
    passed: Ids
    through: dict[int, dict[str, None]]


def collapsed_lanes(
    contents: Contents, rows: Ids, lane: Ids, context: Ids, collapses: Mask, operators: Mask
) -> Collapsed:
    """The lanes of some events, without wrappers.

    Frames around calls of modules give way to these. So does an operation that fills its lane, and
    the one module that a wrapper calls (checkpointing's, DDP's), if its siblings launch no
    device work.

    Args:
        contents: of the trace.
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
    return Collapsed(work.lanes(work.in_order(*done)), work.passed, work.through)


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
    around: Mask = contents.index.surrounds[rows] & plain & (calls > 0)
    return around


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
    number = _longest(lanes.lane, time)
    lane, module = lanes.lane[number], lanes.module
    others = np.ones(len(time), np.bool_)
    others[number] = False
    rest, whole = (np.bincount(lanes.lane, part, len(lanes)) for part in (time * others, time))
    blocked = np.bincount(lanes.lane, others & (launches | (module >= 0)), len(lanes)) > 0
    fills = (rest <= TINY * whole)[lane]
    wrapped = contents.modules.is_only_one_in(module[number], lanes.context[lane])
    opens = _opens(contents, contents.events(lanes)[number], work.operators[lane])
    wrappers: Ids = number[(fills | wrapped) & ~(blocked | on_device)[lane] & opens]
    return wrappers


def _longest(lane: Ids, time: Ids) -> Ids:
    """The longest operation of each lane, of equals the first, in order of lanes."""
    first = np.flatnonzero(np.append(np.ones(min(len(lane), 1), np.bool_), lane[1:] != lane[:-1]))
    most = np.maximum.reduceat(time, first)
    number = np.flatnonzero(time == np.repeat(most, np.diff(np.append(first, len(lane)))))
    longest: Ids = number[np.searchsorted(number, first)]
    return longest


def _opens(contents: Contents, events: Ids, operators: Mask) -> Mask:
    """Whether operations can be opened in place: events, or -1 for runs of events, which can."""
    index = contents.index
    around = index.surrounds[events] | index.is_call[events]
    inside = index.has_children(events) & ~index.launches_itself[events]
    works = ~around & _work_themselves(contents, events)
    opens: Mask = (events < 0) | ((operators | around) & inside & ~works)
    return opens


def _work_themselves(contents: Contents, events: Ids) -> Mask:
    """Whether most of an operator's time is its own, and it launches nothing."""
    index = contents.index
    first, end = index.launches_inside(events)
    works: Mask = (end == first) & (2 * index.events["self_ns"][events] > index.duration[events])
    return works


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
    left = held.take(held.rows != opened[held.lane])
    return work.in_order(left, LaneEvents(inner, lane[single][of]))
