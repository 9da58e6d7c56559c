"""What `trace/native` computes, in NumPy: the specification that the compiled loops are held to."""

from __future__ import annotations

import numpy as np

from stepscope.base.arrays import Codes8, Ids, Ids32, IntArray, Mask, Rows, Times
from stepscope.trace.row_order import stable_order
from stepscope.trace.sets import distinct


def parents(track: IntArray, start: Times, duration: Times, tolerance: int) -> Ids32:
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
    child = np.flatnonzero(parent >= 0)
    outer = parent[child]
    end = np.minimum(start[child] + duration[child], start[outer] + duration[outer])
    inside = np.bincount(outer, np.maximum(end - start[child], 0), len(parent))
    return np.maximum(duration - inside.astype(np.int64), 0)


def depths(parent: Ids32) -> Ids32:
    depth = (parent >= 0).astype(np.int32)
    above, inside = parent.copy(), np.flatnonzero(parent >= 0)
    while len(inside):  # `depth` counts the steps to `above`, which doubles its distance
        outer = above[inside]
        depth[inside] += depth[outer]
        above[inside] = above[outer]
        inside = inside[above[inside] >= 0]
    return depth


def inherit(parent: Ids32, own: IntArray) -> Ids32:
    value = own.astype(np.int32)
    above = parent.copy()
    waiting = np.flatnonzero((value < 0) & (above >= 0))
    while len(waiting):
        outer = above[waiting]
        value[waiting] = value[outer]
        above[waiting] = above[outer]
        waiting = waiting[(value[waiting] < 0) & (above[waiting] >= 0)]
    return value


def totals_inside(parent: Ids32, own: Ids) -> Ids:
    total = own.astype(np.int64)
    for level in reversed(_levels(parent)[1:]):
        np.add.at(total, parent[level], total[level])
    return total


def passed_down(parent: Ids32, own: Codes8, allowed: Mask) -> Codes8:
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
    lanes: IntArray, times: Times, track: IntArray, start: Times, duration: Times, parent: Ids32
) -> Ids32:
    found = last_started(lanes, times, track, start)
    outside = np.flatnonzero(found >= 0)
    end = start + duration
    while len(outside):
        ended = end[found[outside]] < times[outside]
        outside = outside[ended]
        found[outside] = parent[found[outside]]
        outside = outside[found[outside] >= 0]
    return found


def last_started(lanes: IntArray, times: Times, track: IntArray, start: Times) -> Ids32:
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


def grouped(keys: IntArray, groups: int) -> tuple[IntArray, Ids]:
    order = np.argsort(keys, kind="stable")
    return order, np.searchsorted(keys[order], np.arange(groups + 1))


def start_order(start: Times, duration: Times) -> IntArray | None:
    """By start, of equal starts the longest first.

    A stable sort by one column is fast where it is nearly sorted, as recordings are.
    """
    order = np.argsort(start, kind="stable")
    same = np.diff(start[order]) == 0
    if same.any():
        tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
        rows = order[tied]
        order[tied] = rows[np.lexsort((-duration[rows], start[rows]))]
    return None if (order[1:] > order[:-1]).all() else order
