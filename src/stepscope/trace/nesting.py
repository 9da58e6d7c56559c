"""The nesting of events on each track: parents, depths, self times and enclosing events.

Columns of events have shape (n,). Events are in order of start, longer ones first among equal
starts; times are int64, ns; `parent` is the event around each, int32, -1 at the top.
"""

from typing import Any

import numpy as np

from stepscope.base.arrays import Codes8, Ids, Ids32, IntArray, Mask, Times
from stepscope.base.compiled.library import function

_NULL = 0  # a null pointer


def parents(track: IntArray, start: Times, duration: Times, tolerance: int) -> Ids32:
    """The innermost event around each event on the same track.

    An event is around another if it ends no earlier. It may end up to `tolerance` earlier, since
    recorders round times (ns), if the two overlap. Partly overlapping events are siblings.

    Example:
        >>> parents(np.zeros(3, int), np.array([0, 1, 6]), np.array([9, 3, 2]), 0).tolist()
        [-1, 0, 0]
    """
    track, tracks = _numbered(track)
    parent = np.empty(len(track), np.int32)
    times = (np.ascontiguousarray(column, np.int64) for column in (start, duration))
    _run("stepscope_parents", len(parent), tracks, track, *times, tolerance, parent)
    return parent


def self_times(parent: Ids32, start: Times, duration: Times) -> Times:
    """The time of each event during which no direct child runs, ns, shape (n,)."""
    times = (np.ascontiguousarray(column, np.int64) for column in (start, duration))
    result = np.empty(len(parent), np.int64)
    _run("stepscope_self_times", len(parent), _ids(parent), *times, result)
    return result


def depths(parent: Ids32) -> Ids32:
    """The number of events around each event, shape (n,)."""
    depth = np.empty(len(parent), np.int32)
    _run("stepscope_depths", len(parent), _ids(parent), depth)
    return depth


def inherit(parent: Ids32, own: IntArray) -> Ids32:
    """For each event, the value of the innermost event around it (itself included) that has one.

    -1 is none, in `own` as in the result.

    Example:
        >>> inherit(np.array([-1, 0, 1]), np.array([7, -1, -1])).tolist()
        [7, 7, 7]
    """
    value = own.astype(np.int32)
    _run("stepscope_inherit", len(value), _ids(parent), value)
    return value


def innermost(parent: Ids32, chosen: Mask) -> Ids32:
    """The innermost of some events around each event, itself included; -1 if none is.

    Example:
        >>> innermost(np.array([-1, 0, 1]), np.array([True, False, False])).tolist()
        [0, 0, 0]
    """
    return inherit(parent, np.where(chosen, np.arange(len(chosen), dtype=np.int32), -1))


def is_inside(parent: Ids32, chosen: Mask) -> Mask:
    """Whether each event is one of some or inside one, bool, shape (n,)."""
    return innermost(parent, chosen) >= 0


def outermost(parent: Ids32, chosen: Mask) -> Mask:
    """Those of some events that are not inside another of them, bool, shape (n,).

    Example:
        >>> outermost(np.array([-1, 0, 1, -1], np.int32), np.array([False, True, True, True]))
        array([False,  True, False,  True])
    """
    if not chosen.any():
        return chosen
    return np.logical_and(chosen, ~np.append(is_inside(parent, chosen), False)[parent])


def totals_inside(parent: Ids32, own: IntArray | Mask) -> Ids:
    """The sum of the values of each event and of all events inside it, shape (n,).

    Example:
        >>> totals_inside(np.array([-1, 0, 0]), np.array([0, 2, 3])).tolist()
        [5, 2, 3]
    """
    total = own.astype(np.int64)
    _run("stepscope_totals_inside", len(total), _ids(parent), total)
    return total


def holds(parent: Ids32, chosen: Mask) -> Mask:
    """Whether each event is one of some or has one inside, bool, shape (n,)."""
    return totals_inside(parent, chosen) > 0


def passed_down(parent: Ids32, own: Codes8, allowed: Mask) -> Codes8:
    """The code of each event: its own if that is allowed in what is around it, else that.

    `allowed` says for each code around an event, and last for none (-1), whether it may have a
    code, shape (codes + 1, codes).

    Example:
        >>> passed_down(np.array([-1, 0]), np.array([0, 1], np.int8), np.eye(3, 2, dtype=bool))
        array([-1, -1], dtype=int8)
    """
    passed = np.empty(len(own), np.int8)
    codes, table = np.ascontiguousarray(own, np.int8), np.ascontiguousarray(allowed)
    events = (len(own), _ids(parent), codes)
    _run("stepscope_passed_down", *events, allowed.shape[1], table, passed)
    return passed


def enclosing(
    lanes: IntArray, times: Times, track: IntArray, start: Times, duration: Times, parent: Ids32
) -> Ids32:
    """The innermost event on each of the tracks `lanes` at each of `times`, -1 if none runs."""
    around = (np.ascontiguousarray(duration, np.int64), _ids(parent))
    return _searched(lanes, times, track, start, *around)


def last_started(lanes: IntArray, times: Times, track: IntArray, start: Times) -> Ids32:
    """The event on each of `lanes` that started last at or before each of `times`, or -1."""
    return _searched(lanes, times, track, start, _NULL, _NULL)


def _searched(
    lanes: IntArray, times: Times, track: IntArray, start: Times, duration: Any, parent: Any
) -> Ids32:
    """The event that started last, or with durations and parents the innermost that still runs."""
    track, tracks = _numbered(track)
    event = np.empty(len(lanes), np.int32)
    events = (len(track), tracks, track, np.ascontiguousarray(start, np.int64))
    asked = (len(event), _ids(lanes), np.ascontiguousarray(times, np.int64))
    _run("stepscope_enclosing", *events, duration, parent, *asked, event)
    return event


def _numbered(track: IntArray) -> tuple[Ids32, int]:
    """Tracks as the library takes them, and the number above all of them."""
    if track.min(initial=0) < 0:
        raise ValueError("expected the numbers of tracks, found a negative one")
    return _ids(track), int(track.max(initial=-1)) + 1


def _ids(values: IntArray) -> Ids32:
    return np.ascontiguousarray(values, np.int32)


def _run(name: str, *arguments: Any) -> None:
    if not function(name)(*arguments):
        raise MemoryError(f"{name}: too little memory, or events that are around each other")
