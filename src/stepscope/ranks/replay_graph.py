"""What waits for what in a job, built once and replayed with any times."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stepscope.arrays import Floats, Ids
from stepscope.compiled.build import LIBRARY
from stepscope.compiled.library import function
from stepscope.ranks.collectives import Matched


@dataclass(frozen=True, eq=False)
class ReplayGraph:
    """Edges between marks, arrivals at meetings, and meetings, in order of where they begin.

    Attributes:
        first: of each node its first edge, then the number of edges, shape (nodes + 1,).
        target: the node that each edge leads to, shape (edges,).
        own: the mark before whose own work an edge takes its time, or -1, shape (edges,).
        transfer: the meeting from whose transfer an edge takes its time, or -1, shape (edges,).
        begins: the first mark of each rank, shape (ranks,).
    """

    first: Ids
    target: Ids
    own: Ids
    transfer: Ids
    begins: Ids

    @classmethod
    def of(cls, matched: Matched, rank: Ids, arrives: Ids, waits: Ids) -> ReplayGraph:
        """The graph of the calls of all ranks.

        Args:
            matched: the calls.
            rank: of each mark; marks of a rank are consecutive.
            arrives, waits: the mark of each call's arrival, and of the wait for it.
        """
        source, target, own, transfer = _edges(matched, rank, arrives, waits)
        order = np.argsort(source, kind="stable")
        nodes = len(rank) + len(arrives) + matched.count
        first = np.searchsorted(source[order], np.arange(nodes + 1))
        begins = np.flatnonzero(np.diff(rank, prepend=-1))
        return cls(first, target[order], own[order], transfer[order], begins)

    def times(self, begin: Floats, own: Floats, transfer: Floats) -> Floats:
        """When each node is reached, ns, shape (nodes,); nan in a circle.

        Args:
            begin: when each rank begins.
            own: work before each mark.
            transfer: of each meeting.
        """
        ready = np.zeros(len(self.first) - 1)
        ready[self.begins] = begin + own[self.begins]
        delay = np.append(own, 0.0)[self.own] + np.append(transfer, 0.0)[self.transfer]
        return longest_path(ready, self.first, self.target, delay)


def _edges(matched: Matched, rank: Ids, arrives: Ids, waits: Ids) -> tuple[Ids, Ids, Ids, Ids]:
    """Source, target, and the mark or the meeting whose time an edge takes."""
    arrival, meeting = len(rank), len(rank) + len(arrives)
    marks = np.arange(1, len(rank))
    chain = marks[rank[1:] == rank[:-1]]
    met = np.flatnonzero(matched.meeting >= 0)
    number = matched.meeting[met]
    before, after = _before_on_stream(matched, met)
    earlier = matched.meeting[before]
    none, nothing = np.full(len(met), -1), np.full(len(before), -1)
    parts = [
        (chain - 1, chain, chain, np.full(len(chain), -1)),
        (arrives[met], arrival + met, none, none),
        (arrival + met, meeting + number, none, none),
        (meeting + number, waits[met], none, number),
        (meeting + earlier, arrival + after, nothing, earlier),
    ]
    source, target, own, transfer = (
        np.concatenate(column).astype(np.int64) for column in zip(*parts, strict=True)
    )
    return source, target, own, transfer


def _before_on_stream(matched: Matched, met: Ids) -> tuple[Ids, Ids]:
    """Pairs of calls that follow each other on one stream of one rank."""
    columns, rank = matched.columns, matched.rank
    order = met[np.lexsort((
        columns.start_ns[met], columns.step[met], columns.stream[met], rank[met],
    ))]  # fmt: skip
    same = (np.diff(columns.stream[order]) == 0) & (np.diff(rank[order]) == 0)
    return order[:-1][same], order[1:][same]


def longest_path(ready: Floats, first: Ids, target: Ids, delay: Floats) -> Floats:
    """When each node happens: once all nodes before it have, and the delays from them have passed.

    Args:
        ready: the earliest time of each node, float64, shape (nodes,).
        first: where the edges of each node begin, int64, shape (nodes + 1,).
        target: the node at which each edge ends, int64, shape (edges,).
        delay: of each edge, float64, shape (edges,).

    Returns:
        Times, float64, shape (nodes,); nan for nodes that a cycle blocks.

    Example:
        >>> longest_path(np.zeros(2), np.array([0, 1, 1]), np.array([1]), np.array([5.0])).tolist()
        [0.0, 5.0]
    """
    compiled = compiled_longest_path(ready, first, target, delay)
    return longest_path_in_python(ready, first, target, delay) if compiled is None else compiled


def compiled_longest_path(
    ready: Floats, first: Ids, target: Ids, delay: Floats, library: Path = LIBRARY
) -> Floats | None:
    """The same by `native/longest_path.cpp`, None where that is missing."""
    path = function("stepscope_longest_path", library)
    at = np.array(ready, np.float64)
    first, target = np.ascontiguousarray(first, np.int64), np.ascontiguousarray(target, np.int64)
    done = path and path(len(at), first, target, np.ascontiguousarray(delay, np.float64), at)
    return at if done else None


def longest_path_in_python(ready: Floats, first: Ids, target: Ids, delay: Floats) -> Floats:
    """The same."""
    waits_for = np.bincount(target, minlength=len(ready)).tolist()
    at, firsts, targets, delays = ready.tolist(), first.tolist(), target.tolist(), delay.tolist()
    order = [node for node, count in enumerate(waits_for) if not count]
    for node in order:
        for edge in range(firsts[node], firsts[node + 1]):
            after = targets[edge]
            at[after] = max(at[after], at[node] + delays[edge])
            waits_for[after] -= 1
            if not waits_for[after]:
                order.append(after)
    return np.where(np.array(waits_for, np.int64) > 0, np.nan, np.array(at, np.float64))
