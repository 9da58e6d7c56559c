"""Arithmetic on sets of time intervals: unions, intersections and gaps."""

from __future__ import annotations

import numpy as np

from stepscope.base.arrays import IntArray, Mask, Rows, Times
from stepscope.trace.row_order import running_span


class Intervals:
    """A union of intervals, kept sorted and disjoint.

    They may be given in any order, overlapping or not, ns; one that does not end after its start is dropped.

    Example:
        >>> Intervals([0, 5], [6, 9]).total()
        9
    """

    __slots__ = ("ends", "starts")

    def __init__(self, starts: IntArray | list[int], ends: IntArray | list[int]) -> None:
        begin, end = np.asarray(starts, np.int64), np.asarray(ends, np.int64)
        keep = end > begin
        self.starts, self.ends = _merge(begin[keep], end[keep])

    def __len__(self) -> int:
        return len(self.starts)

    def total(self) -> int:
        """Length of the union, ns."""
        return int((self.ends - self.starts).sum())

    def clip(self, start: int, end: int) -> Intervals:
        """The part within [start, end); costs no more than the intervals in it."""
        first = np.searchsorted(self.ends, start, side="right")
        last = max(int(np.searchsorted(self.starts, end, side="left")), int(first))
        starts, ends = self.starts[first:last], self.ends[first:last]
        return Intervals(np.maximum(starts, start), np.minimum(ends, end))

    def union(self, other: Intervals) -> Intervals:
        """The union with `other`."""
        return Intervals(np.concatenate([self.starts, other.starts]), np.concatenate([self.ends, other.ends]))

    def cut(self, starts: Times, ends: Times) -> tuple[Rows, Times, Times]:
        """The parts within each [start, end): which of these, start and end; shape (parts,) each.

        Example:
            >>> Intervals([0, 5], [4, 9]).cut(np.array([1, 3]), np.array([3, 6]))[0].tolist()
            [0, 1, 1]
        """
        first = np.searchsorted(self.ends, starts, side="right")
        last = np.searchsorted(self.starts, ends, side="left")
        which, part = index_pairs(first, np.maximum(last, first))
        begin, end = np.maximum(self.starts[part], starts[which]), np.minimum(self.ends[part], ends[which])
        kept = end > begin
        return which[kept], begin[kept], end[kept]

    def gaps(self, start: int, end: int) -> Intervals:
        """The parts of [start, end) that are not covered."""
        inside = self.clip(start, end)
        return Intervals(np.append(start, inside.ends), np.append(inside.starts, end))

    def minus(self, other: Intervals) -> Intervals:
        """The parts that are not in `other`."""
        if not len(self):
            return self
        return self.intersect(other.gaps(int(self.starts[0]), int(self.ends[-1])))

    def intersect(self, other: Intervals) -> Intervals:
        """The intersection with `other`."""
        return Intervals(*other.cut(self.starts, self.ends)[1:])

    def before(self, times: Times) -> Times:
        """How much of the union lies before each of `times`, ns, shape of `times`."""
        covered = np.concatenate([[0], np.cumsum(self.ends - self.starts)])
        index = np.searchsorted(self.starts, times, side="right")
        if not len(self):
            return np.zeros(len(times), np.int64)
        previous = np.maximum(index - 1, 0)
        inside = np.minimum(times, self.ends[previous]) - self.starts[previous]
        return np.where(index > 0, covered[previous] + inside, 0)

    def cover(self, moments: Times) -> Mask:
        """Whether each of some moments lies in the union, shape of `moments`."""
        return running_span(self.starts, self.ends, moments) >= 0

    def within(self, starts: Times, ends: Times) -> Times:
        """How much of the union lies in each [start, end), ns, shape of `starts`."""
        return self.before(ends) - self.before(starts)


def _merge(starts: Times, ends: Times) -> tuple[Times, Times]:
    if (starts[1:] < starts[:-1]).any():
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
    reach = np.maximum.accumulate(ends)
    apart = starts[1:] > reach[:-1]
    return starts[np.append(True, apart)[: len(starts)]], reach[np.append(apart, True)[: len(starts)]]


def index_pairs(first: Rows, last: Rows) -> tuple[Rows, Rows]:
    """Index pairs (i, j) for every i and every j in [first[i], last[i]).

    Example:
        >>> [pair.tolist() for pair in index_pairs(np.array([4, 9]), np.array([6, 10]))]
        [[0, 0, 1], [4, 5, 9]]
    """
    counts = last - first
    left = np.repeat(np.arange(len(first)), counts)
    offset = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    return left, np.repeat(first, counts) + offset


def grouped_union(groups: IntArray, starts: Times, ends: Times, count: int) -> Times:
    """Length of the union of intervals within each group, ns, shape (count,).

    The group of each interval is from 0 to `count` - 1.

    Example:
        >>> grouped_union(np.array([0, 0, 1]), np.array([0, 2, 0]), np.array([4, 6, 1]), 2).tolist()
        [6, 1]
    """
    if not len(starts):
        return np.zeros(count, np.int64)
    group, start, end = groups, starts, ends
    same = groups[1:] == groups[:-1]
    if not ((groups[1:] > groups[:-1]) | (same & (starts[1:] >= starts[:-1]))).all():
        order = np.lexsort((starts, groups))
        group, start, end = groups[order], starts[order], ends[order]
    base = int(start.min())
    # Groups are laid end to end on one axis, so that one running maximum handles all.
    stride = int(end.max()) - base + 1
    if stride * count >= 2**62:
        unions = [Intervals(start[group == each], end[group == each]) for each in range(count)]
        return np.array([union.total() for union in unions], np.int64)
    offset = group.astype(np.int64) * stride - base
    reach = np.maximum.accumulate(end + offset)
    before = np.concatenate([[np.iinfo(np.int64).min], reach[:-1]])
    covered = np.maximum(reach - np.maximum(start + offset, before), 0)
    return np.bincount(group, weights=covered, minlength=count).astype(np.int64)
