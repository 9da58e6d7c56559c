"""Collapse wrappers: replace frames around module calls, and lone children, by their contents.

Source: HOTLINE appendix C.2, whose aim it serves: few operations, and each of them worth a look.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stepscope.arrays import Ids, Mask
from stepscope.timeline.event_index import ranges
from stepscope.timeline.lanes import Contents, Lane
from stepscope.timeline.sections import TINY


def collapsed_lanes(contents: Contents, rows: Ids, context: int, operators: bool) -> list[Lane]:
    """The lanes of some events, without wrappers.

    Frames around calls of modules give way to these. So does an operation that fills its lane, and
    the one module that a wrapper calls (checkpointing's, DDP's), if its siblings launch no
    device work.

    Args:
        contents: of the trace.
        rows: event ids, none inside another, in pre-order, shape (rows,).
        context: the module that they lie in, -1 for none.
        operators: open operators too, not only frames, annotations and calls of modules.
    """
    cuts = np.flatnonzero(np.diff(contents.index.track[rows])) + 1
    lanes = [contents.lane(part, context) for part in np.split(rows, cuts) if len(part)]
    return [_collapsed(contents, lane, operators) for lane in lanes]


def _collapsed(contents: Contents, lane: Lane, operators: bool) -> Lane:
    """The lane with its wrappers replaced by their contents."""
    lane = _without_frames(contents, lane)
    while (wrapper := _wrapper(contents, lane, operators)) is not None:
        lane = _without_frames(contents, _with_inside(contents, lane, wrapper))
    return _without_tiny_frames(contents, lane)


def _without_frames(contents: Contents, lane: Lane) -> Lane:
    """Frames and annotations around calls of modules, replaced by what is inside them."""
    while (around := _frames_around_calls(contents, lane.rows)).any():
        frames = lane.rows[around]
        inner = [contents.index.children(frame) for frame in frames.tolist()]
        rows = contents.index.in_order(np.concatenate([lane.rows[~around], *inner]))
        names = tuple(contents.event_name(frame) for frame in frames.tolist())
        lane = _continued(lane, contents.lane(rows, lane.context), names, len(frames))
    return lane


def _frames_around_calls(contents: Contents, rows: Ids) -> Mask:
    first, end = contents.index.inside(rows)
    calls = contents.index.calls_before[end] - contents.index.calls_before[first]
    plain = ~contents.index.is_call[rows] & ~contents.index.launches_itself[rows]
    around: Mask = contents.index.surrounds[rows] & plain & (calls > 0)
    return around


def _without_tiny_frames(contents: Contents, lane: Lane) -> Lane:
    """Frames in which nothing works (`__getattr__`) left out, if all of them are tiny."""
    index = contents.index
    first, end = index.inside(lane.rows)
    works = index.work_before[end] > index.work_before[first]
    launches = np.greater(*index.launches_inside(lane.rows)[::-1])
    tiny = index.is_frame[lane.rows] & ~index.is_call[lane.rows] & ~works & ~launches
    time = contents.index.duration[lane.rows]
    if tiny.all() or not tiny.any() or time[tiny].sum() > TINY * time.sum():
        return lane
    inner = contents.lane(lane.rows[~tiny], lane.context)
    return _continued(lane, inner, (), int((end - first)[tiny].sum()))


def _wrapper(contents: Contents, lane: Lane, operators: bool) -> int | None:
    """The operation that wraps the work of its lane, if it can be opened.

    It takes all but a tiny share of the lane's time, or is the one module that a wrapper calls.
    """
    if contents.index.on_device[lane.rows].any():
        return None
    time = np.add.reduceat(contents.index.duration[lane.rows], lane.bounds[:-1])
    number = int(time.argmax())
    others = np.delete(np.arange(len(lane)), number)
    fills = time[others].sum() <= TINY * time.sum()
    wrapped = contents.modules.is_only_one_in(int(lane.module[number]), lane.context)
    if not (fills or wrapped) or (lane.module[others] >= 0).any():
        return None
    if _launch_work(contents, lane, others):
        return None
    return number if _opens(contents, lane, number, operators) else None


def _launch_work(contents: Contents, lane: Lane, operations: Ids) -> bool:
    _, position = ranges(lane.bounds[operations], lane.bounds[operations + 1])
    first, end = contents.index.launches_inside(lane.rows[position])
    return bool((end > first).any())


def _opens(contents: Contents, lane: Lane, number: int, operators: bool) -> bool:
    event = contents.event(lane, number)
    if event < 0:
        return True
    around = contents.index.surrounds[event] or contents.index.is_call[event]
    inside = contents.index.has_children(event) and not contents.index.launches_itself[event]
    works = not around and _works_itself(contents, event)
    return bool((operators or around) and inside and not works)


def _works_itself(contents: Contents, event: int) -> bool:
    """Whether most of an operator's time is its own, and it launches nothing."""
    index = contents.index
    first, end = index.launches_inside(np.array([event]))
    own = int(index.events["self_ns"][event])
    return bool(end[0] == first[0]) and 2 * own > int(index.duration[event])


def _with_inside(contents: Contents, lane: Lane, number: int) -> Lane:
    """A lane with one operation replaced by what is directly inside it."""
    event, context = contents.event(lane, number), contents.context_in(lane, number)
    names = (contents.name(lane, number),)
    if event < 0:
        return _continued(lane, contents.lane(lane.rows, context), names, 0)
    rows = np.concatenate([lane.rows[lane.rows != event], contents.index.children(event)])
    inner = contents.lane(contents.index.in_order(rows), context)
    return _continued(lane, inner, names, 1)


def _continued(lane: Lane, inner: Lane, names: tuple[str, ...], events: int) -> Lane:
    through = tuple(dict.fromkeys((*lane.through, *names)))
    return replace(inner, through=through, passed=lane.passed + events)
