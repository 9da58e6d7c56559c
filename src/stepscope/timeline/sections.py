"""Unnamed sections: runs of tiny operations, of one name, of repeated blocks or patterns.

Source: HOTLINE section 4.5. A run of one name, copies of a module and, among many operations, a
pattern of names that repeats become one unit each; then a series of units that are all tiny becomes
a section. So what is not tiny, alone or by being repeated, is never hidden among tiny operations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stepscope.arrays import Ids, Mask, Times

TINY = 0.05
_LEAST_BLOCKS = 5  # fewer are as quickly compared side by side
_LEAST_COUNT = 3
_LONGEST_PERIOD = 64


@dataclass(frozen=True)
class SiblingOperations:
    """What the rules ask of sibling operations in order of time, shapes (operations,).

    Attributes:
        name: a code that operations of one name share.
        block: a code that copies of one block share, -1 for others.
        cpu_ns: CPU time.
        device_ns: device busy time.
    """

    name: Ids
    block: Ids
    cpu_ns: Times
    device_ns: Times

    def part(self, first: int, end: int) -> SiblingOperations:
        """The operations from `first` to before `end`."""
        columns = (self.name, self.block, self.cpu_ns, self.device_ns)
        return SiblingOperations(*(column[first:end] for column in columns))


def find_sections(
    operations: SiblingOperations, first: Ids, parent_ns: Times, tiny: float = TINY
) -> Ids:
    """Cut sibling operations into sections and single operations, lane by lane.

    A series is tiny if each of its units, on the CPU and on the device, takes less than `tiny` of
    the parent. A section that holds everything would only repeat its parent: its operations are
    listed alone if they are few (2 / tiny), else cut into pieces that reach the threshold.

    Args:
        operations: of all lanes, one after the other; none is empty.
        first: lane i holds the operations from `first[i]` to before `first[i + 1]`, (lanes + 1,).
        parent_ns: runtime of each lane's parent, its longer side, shape (lanes,).
        tiny: share of it below which an operation is tiny.

    Returns:
        Bounds: section i holds the operations from `bounds[i]` to before `bounds[i + 1]`; int64,
        shape (sections + 1,).

    Example:
        >>> columns = [1, 2, 3], [-1] * 3, [1, 1, 90], [0] * 3
        >>> few = SiblingOperations(*map(np.array, columns))
        >>> find_sections(few, np.array([0, 3]), np.array([100])).tolist()
        [0, 2, 3]
    """
    counts = np.diff(first)
    lane = np.repeat(np.arange(len(counts)), counts)
    begins = np.zeros(len(lane), np.bool_)
    begins[first[:-1]] = True
    repeats = {
        one: find_repeats(operations.name[first[one] : first[one + 1]])
        for one in np.flatnonzero(counts > 2 / tiny).tolist()
    }
    placed = [replace(one, first=one.first + first[of]) for of in repeats for one in repeats[of]]
    starts = np.flatnonzero(~_joined(operations, begins, placed))
    is_tiny = _runtime(operations, starts) < tiny * parent_ns[lane[starts]]
    starts = starts[~_continues(is_tiny) | begins[starts]]
    whole = (np.bincount(lane[starts], minlength=len(counts)) == 1) & (counts > 1)
    opened = [np.flatnonzero(whole[lane] & (counts <= 2 / tiny)[lane])]
    for one in repeats:
        if whole[one]:
            inside = operations.part(first[one], first[one + 1])
            opened.append(first[one] + _pieces_of_all(inside, repeats[one], tiny))
    return np.append(np.unique(np.concatenate([starts, *opened])), len(lane))


def _pieces_of_all(operations: SiblingOperations, repeats: list[Repeat], tiny: float) -> Ids:
    """Where the parts of what would be one section begin: copies of a pattern, or of series."""
    count = len(operations.name)
    period = next((one.period for one in repeats if one.period * one.count == count), 1)
    copies = np.arange(0, count, period)
    pieces: Ids = copies[_pieces(_summed(operations, copies), tiny)]
    return pieces


def _summed(operations: SiblingOperations, starts: Ids) -> SiblingOperations:
    """Units as operations."""
    return SiblingOperations(
        name=operations.name[starts],
        block=operations.block[starts],
        cpu_ns=np.add.reduceat(operations.cpu_ns, starts),
        device_ns=np.add.reduceat(operations.device_ns, starts),
    )


def _joined(operations: SiblingOperations, begins: Mask, repeats: list[Repeat]) -> Mask:
    """Operations that belong to one unit with the one before."""
    same = _equals_previous(operations.name) & ~begins
    copies = _equals_previous(operations.block) & (operations.block >= 0) & ~begins
    lengths = np.diff(np.append(np.flatnonzero(~copies), len(copies)))
    many: Mask = copies & np.repeat(lengths >= _LEAST_BLOCKS, lengths)
    joined: Mask = same | many
    for one in repeats:
        joined[one.first + 1 : one.end] = True
        joined[[one.first]] = joined[one.end : one.end + 1] = False
    return joined


def _equals_previous(values: Ids) -> Mask:
    return np.append(np.zeros(min(len(values), 1), np.bool_), values[1:] == values[:-1])


def _continues(tiny: Mask) -> Mask:
    """Units that continue a series of tiny ones."""
    continues: Mask = tiny & np.append(False, tiny[:-1])
    return continues


def _runtime(operations: SiblingOperations, starts: Ids) -> Times:
    """The longer side of each unit."""
    units = _summed(operations, starts)
    return np.maximum(units.cpu_ns, units.device_ns)


def _pieces(operations: SiblingOperations, tiny: float) -> Ids:
    """Where single operations begin if they are few, else series that reach the threshold."""
    count = len(operations.name)
    if count <= 2 / tiny:
        return np.arange(count)
    runtime = np.maximum(operations.cpu_ns, operations.device_ns) + 1  # none takes no time at all
    least = tiny * runtime.sum()
    large = runtime >= least
    small = np.where(large, 0, runtime)
    piece = ((np.cumsum(small) - small) / least).astype(np.int64)
    after_large = np.append(False, large[:-1])
    return np.flatnonzero(~_equals_previous(piece) | large | after_large)


@dataclass(frozen=True)
class Repeat:
    """`count` copies of `period` operations, the first of them at `first`."""

    first: int
    period: int
    count: int

    @property
    def end(self) -> int:
        """Where the operation after the last copy is."""
        return self.first + self.period * self.count


def find_repeats(names: Ids) -> list[Repeat]:
    """Patterns of different names that repeat at least three times, in order, none in another.

    Where patterns overlap the one that covers most is taken, and of equals the shortest.

    Args:
        names: a code that operations of one name share, shape (operations,).

    Example:
        >>> find_repeats(np.array([9, 1, 2, 1, 2, 1, 2, 8]))
        [Repeat(first=1, period=2, count=3)]
    """
    longest = min(_LONGEST_PERIOD, len(names) // _LEAST_COUNT)
    found = [one for period in range(2, longest + 1) for one in _of_period(names, period)]
    found.sort(key=lambda one: (one.first - one.end, one.period))
    taken = np.zeros(len(names), np.bool_)
    kept = []
    for one in found:
        if not taken[one.first : one.end].any():
            taken[one.first : one.end] = True
            kept.append(one)
    return sorted(kept, key=lambda one: one.first)


def whole_period(names: Ids) -> int:
    """The period of the pattern that all names are copies of, as `find_repeats` has it; else 1.

    Example:
        >>> whole_period(np.array([1, 2, 1, 2, 1, 2])), whole_period(np.array([1, 1, 1, 1, 1, 1]))
        (2, 1)
    """
    size = len(names)
    if (names == names[0]).all():
        return 1
    for period in range(2, min(_LONGEST_PERIOD, size // _LEAST_COUNT) + 1):
        if size % period == 0 and (names[period:] == names[:-period]).all():
            return period
    return 1


def _of_period(names: Ids, period: int) -> list[Repeat]:
    """Unbroken runs in which every name equals the name `period` operations before."""
    same = np.concatenate([[False], names[period:] == names[:-period], [False]])
    first, end = np.flatnonzero(same[1:] != same[:-1]).reshape(-1, 2).T
    count = (end - first) // period + 1
    enough = count >= _LEAST_COUNT
    return [
        Repeat(at, period, copies)
        for at, copies in zip(first[enough].tolist(), count[enough].tolist(), strict=True)
        if (names[at : at + period] != names[at]).any()
    ]
