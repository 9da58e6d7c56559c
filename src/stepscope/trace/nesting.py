"""The nesting of events on each track: parents, depths, self times and enclosing events.

What takes long is compiled, with the same in Python where that is missing.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from stepscope.arrays import Codes8, Ids, Ids32, IntArray, Mask, Rows, Times
from stepscope.compiled.build import LIBRARY
from stepscope.compiled.library import function
from stepscope.trace.row_order import stable_order
from stepscope.trace.sets import distinct

_TRACKS_PER_EVENT = 4
_NULL = 0  # a null pointer


def parents(track: IntArray, start: Times, duration: Times, tolerance: int) -> Ids32:
    """The innermost event around each event on the same track.

    An event is around another if it ends no earlier. It may end up to `tolerance` earlier, since
    recorders round times, if the two overlap. Partly overlapping events are siblings.

    Args:
        track: integer, shape (n,).
        start: int64, shape (n,), ns, sorted ascending; longer events first among equal starts.
        duration: int64, shape (n,), ns.
        tolerance: ns.

    Returns:
        int32, shape (n,), -1 at the top level.

    Example:
        >>> parents(np.zeros(3, int), np.array([0, 1, 6]), np.array([9, 3, 2]), 0).tolist()
        [-1, 0, 0]
    """
    compiled = compiled_parents(track, start, duration, tolerance)
    return parents_in_python(track, start, duration, tolerance) if compiled is None else compiled


def compiled_parents(
    track: IntArray, start: Times, duration: Times, tolerance: int, library: Path = LIBRARY
) -> Ids32 | None:
    """The same by `native/nesting.cpp`, None where that is missing or tracks have no small ids."""
    path = function("stepscope_parents", library)
    tracks = int(track.max(initial=-1)) + 1
    if path is None or track.min(initial=0) < 0 or tracks > _TRACKS_PER_EVENT * len(track):
        return None
    result = np.empty(len(track), np.int32)
    times = (np.ascontiguousarray(times, np.int64) for times in (start, duration))
    lane = np.ascontiguousarray(track, np.int32)
    done = path(len(result), tracks, lane, *times, tolerance, result)
    return result if done else None


def parents_in_python(track: IntArray, start: Times, duration: Times, tolerance: int) -> Ids32:
    """The same."""
    order = np.argsort(track, kind="stable")
    lane, begin = track[order], start[order]
    end = begin + duration[order]
    inner = _previous_enclosing(lane, begin, end, tolerance)
    result = np.full(len(order), -1, np.int32)
    result[order] = np.where(inner < 0, -1, order[inner])
    return result


def _previous_enclosing(lane: IntArray, begin: Times, end: Times, tolerance: int) -> Rows:
    """For each event of a lane-by-lane order, the nearest earlier one that encloses it.

    Every event's candidate is first its predecessor. A candidate that ends too early cannot enclose
    it, and nor can anything between that candidate and the candidate's own candidate; so all jump
    to their candidate's candidate at once, and the distance doubles with each round.
    """
    candidate = np.arange(-1, len(lane) - 1)
    first = np.flatnonzero(np.diff(lane, prepend=lane[:1] - 1)) if len(lane) else candidate[:0]
    candidate[first] = -1
    open_ = np.flatnonzero(candidate >= 0)
    while len(open_):
        around = candidate[open_]
        encloses = (end[around] + tolerance >= end[open_]) & (
            (end[around] > begin[open_]) | (begin[around] == begin[open_])
        )
        open_, around = open_[~encloses], around[~encloses]
        candidate[open_] = candidate[around]
        open_ = open_[candidate[open_] >= 0]
    return candidate


def self_times(parent: Ids32, start: Times, duration: Times) -> Times:
    """The time of each event during which no direct child runs, ns, shape (n,)."""
    compiled = compiled_self_times(parent, start, duration)
    return self_times_in_python(parent, start, duration) if compiled is None else compiled


def compiled_self_times(
    parent: Ids32, start: Times, duration: Times, library: Path = LIBRARY
) -> Times | None:
    """The same by `native/nesting.cpp`, None where that is missing."""
    path = function("stepscope_self_times", library)
    if path is None:
        return None
    times = (np.ascontiguousarray(times, np.int64) for times in (start, duration))
    result = np.empty(len(parent), np.int64)
    path(len(parent), np.ascontiguousarray(parent, np.int32), *times, result)
    return result


def self_times_in_python(parent: Ids32, start: Times, duration: Times) -> Times:
    """The same."""
    child = np.flatnonzero(parent >= 0)
    outer = parent[child]
    end = np.minimum(start[child] + duration[child], start[outer] + duration[outer])
    inside = np.bincount(outer, np.maximum(end - start[child], 0), len(parent))
    return np.maximum(duration - inside.astype(np.int64), 0)


def depths(parent: Ids32) -> Ids32:
    """The number of events around each event, shape (n,)."""
    compiled = compiled_depths(parent)
    return depths_in_python(parent) if compiled is None else compiled


def compiled_depths(parent: Ids32, library: Path = LIBRARY) -> Ids32 | None:
    """The same by `native/nesting.cpp`, None where that is missing or events are in no order."""
    path = function("stepscope_depths", library)
    depth = np.empty(len(parent), np.int32)
    done = path and path(len(parent), np.ascontiguousarray(parent, np.int32), depth)
    return depth if done else None


def depths_in_python(parent: Ids32) -> Ids32:
    """The same."""
    depth = (parent >= 0).astype(np.int32)
    above, inside = parent.copy(), np.flatnonzero(parent >= 0)
    while len(inside):  # `depth` counts the steps to `above`, which doubles its distance
        outer = above[inside]
        depth[inside] += depth[outer]
        above[inside] = above[outer]
        inside = inside[above[inside] >= 0]
    return depth


def inherit(parent: Ids32, own: IntArray) -> Ids32:
    """For each event, the value of the innermost event around it (itself included) that has one.

    Args:
        parent: int32, shape (n,), -1 at the top.
        own: integer, shape (n,), -1 where an event has no value of its own.

    Returns:
        int32, shape (n,), -1 where nothing around has a value.

    Example:
        >>> inherit(np.array([-1, 0, 1]), np.array([7, -1, -1])).tolist()
        [7, 7, 7]
    """
    compiled = compiled_inherit(parent, own)
    return inherit_in_python(parent, own) if compiled is None else compiled


def compiled_inherit(parent: Ids32, own: IntArray, library: Path = LIBRARY) -> Ids32 | None:
    """The same by `native/nesting.cpp`, None where that is missing or events are in no order."""
    path = function("stepscope_inherit", library)
    value = own.astype(np.int32)
    done = path and path(len(value), np.ascontiguousarray(parent, np.int32), value)
    return value if done else None


def inherit_in_python(parent: Ids32, own: IntArray) -> Ids32:
    """The same."""
    value = own.astype(np.int32)
    above = parent.copy()
    waiting = np.flatnonzero((value < 0) & (above >= 0))
    while len(waiting):
        outer = above[waiting]
        value[waiting] = value[outer]
        above[waiting] = above[outer]
        waiting = waiting[(value[waiting] < 0) & (above[waiting] >= 0)]
    return value


def outermost(parent: Ids32, chosen: Mask) -> Mask:
    """Those of some events that are not inside another of them, bool, shape (n,).

    Args:
        parent: the event around each event, -1 for none, shape (n,).
        chosen: the events to look at, shape (n,).

    Example:
        >>> outermost(np.array([-1, 0, 1, -1], np.int32), np.array([False, True, True, True]))
        array([False,  True, False,  True])
    """
    if not chosen.any():
        return chosen
    around = np.append(inherit(parent, np.where(chosen, 1, -1)), -1)
    result: Mask = chosen & (around[parent] < 0)
    return result


def totals_inside(parent: Ids32, own: Ids) -> Ids:
    """The sum of the values of each event and of all events inside it, shape (n,).

    Args:
        parent: int32, shape (n,), -1 at the top.
        own: int64, shape (n,).

    Example:
        >>> totals_inside(np.array([-1, 0, 0]), np.array([0, 2, 3])).tolist()
        [5, 2, 3]
    """
    compiled = compiled_totals_inside(parent, own)
    return totals_inside_in_python(parent, own) if compiled is None else compiled


def compiled_totals_inside(parent: Ids32, own: Ids, library: Path = LIBRARY) -> Ids | None:
    """The same by `native/nesting.cpp`, None where that is missing or events are in no order."""
    path = function("stepscope_totals_inside", library)
    total = own.astype(np.int64)
    done = path and path(len(total), np.ascontiguousarray(parent, np.int32), total)
    return total if done else None


def totals_inside_in_python(parent: Ids32, own: Ids) -> Ids:
    """The same."""
    total = own.astype(np.int64)
    for level in reversed(_levels(parent)[1:]):
        np.add.at(total, parent[level], total[level])
    return total


def passed_down(parent: Ids32, own: Codes8, allowed: Mask) -> Codes8:
    """The code of each event: its own if that is allowed in what is around it, else that.

    Args:
        parent: int32, shape (n,), -1 at the top.
        own: int8, shape (n,), -1 for none.
        allowed: for each code around an event, and last for none, whether it may have a code,
            shape (codes + 1, codes).

    Example:
        >>> passed_down(np.array([-1, 0]), np.array([0, 1], np.int8), np.eye(3, 2, dtype=bool))
        array([-1, -1], dtype=int8)
    """
    compiled = compiled_passed_down(parent, own, allowed)
    return passed_down_in_python(parent, own, allowed) if compiled is None else compiled


def compiled_passed_down(
    parent: Ids32, own: Codes8, allowed: Mask, library: Path = LIBRARY
) -> Codes8 | None:
    """The same by `native/nesting.cpp`, None where that is missing or events are in no order."""
    path = function("stepscope_passed_down", library)
    passed = np.empty(len(own), np.int8)
    events = (np.ascontiguousarray(parent, np.int32), np.ascontiguousarray(own, np.int8))
    table = np.ascontiguousarray(allowed)
    done = path and path(len(own), *events, allowed.shape[1], table, passed)
    return passed if done else None


def passed_down_in_python(parent: Ids32, own: Codes8, allowed: Mask) -> Codes8:
    """The same."""
    code = own.copy()
    for level in _levels(parent):
        outer = np.where(parent[level] >= 0, code[parent[level]], -1)
        keeps = (own[level] >= 0) & allowed[outer, own[level]]
        code[level] = np.where(keeps, own[level], outer)
    return code


def _levels(parent: Ids32) -> list[Rows]:
    """The events of each depth, the outermost first."""
    depth = depths(parent)
    order = stable_order(depth)
    return np.split(order, np.flatnonzero(np.diff(depth[order])) + 1)


def enclosing(
    lanes: IntArray,
    times: Times,
    track: IntArray,
    start: Times,
    duration: Times,
    parent: Ids32,
) -> Ids32:
    """The innermost event on a given track at a given time.

    Args:
        lanes: integer, shape (m,), track of each query.
        times: int64, shape (m,), ns.
        track, start, duration, parent: of the events, shape (n,), in order of start.

    Returns:
        int32, shape (m,), -1 if no event runs on that track at that time.
    """
    found = _compiled_search(lanes, times, track, start, (duration, parent), LIBRARY)
    if found is None:
        found = enclosing_in_python(lanes, times, track, start, duration, parent)
    return found


def compiled_enclosing(
    lanes: IntArray,
    times: Times,
    track: IntArray,
    start: Times,
    duration: Times,
    parent: Ids32,
    library: Path = LIBRARY,
) -> Ids32 | None:
    """The same by `native/nesting.cpp`, None where that is missing or tracks have no small ids."""
    return _compiled_search(lanes, times, track, start, (duration, parent), library)


def enclosing_in_python(
    lanes: IntArray,
    times: Times,
    track: IntArray,
    start: Times,
    duration: Times,
    parent: Ids32,
) -> Ids32:
    """The same."""
    found = last_started_in_python(lanes, times, track, start)
    outside = np.flatnonzero(found >= 0)
    end = start + duration
    while len(outside):
        ended = end[found[outside]] < times[outside]
        outside = outside[ended]
        found[outside] = parent[found[outside]]
        outside = outside[found[outside] >= 0]
    return found


def last_started(lanes: IntArray, times: Times, track: IntArray, start: Times) -> Ids32:
    """The event on each of `lanes` that started last at or before each of `times`, or -1."""
    found = _compiled_search(lanes, times, track, start, (), LIBRARY)
    return last_started_in_python(lanes, times, track, start) if found is None else found


def last_started_in_python(lanes: IntArray, times: Times, track: IntArray, start: Times) -> Ids32:
    """The same."""
    found = np.full(len(lanes), -1, np.int32)
    order = stable_order(track)
    sorted_tracks = track[order]
    for lane in distinct(lanes).tolist():
        members = order[slice(*np.searchsorted(sorted_tracks, [lane, lane + 1]))]
        asked = np.flatnonzero(lanes == lane)
        index = np.searchsorted(start[members], times[asked], side="right") - 1
        if len(members):
            found[asked] = np.where(index >= 0, members[np.maximum(index, 0)], -1)
    return found


def _compiled_search(
    lanes: IntArray,
    times: Times,
    track: IntArray,
    start: Times,
    around: tuple[Times, Ids32] | tuple[()],
    library: Path,
) -> Ids32 | None:
    """The event that started last, or with durations and parents the innermost that still runs."""
    path = function("stepscope_enclosing", library)
    tracks = int(track.max(initial=-1)) + 1
    if path is None or track.min(initial=0) < 0 or tracks > _TRACKS_PER_EVENT * len(track):
        return None
    found = np.empty(len(lanes), np.int32)
    duration, parent = (
        (np.ascontiguousarray(around[0], np.int64), np.ascontiguousarray(around[1], np.int32))
        if around
        else (_NULL, _NULL)
    )
    events = (np.ascontiguousarray(track, np.int32), np.ascontiguousarray(start, np.int64))
    asked = (np.ascontiguousarray(lanes, np.int32), np.ascontiguousarray(times, np.int64))
    done = path(len(track), tracks, *events, duration, parent, len(found), *asked, found)
    return found if done else None
