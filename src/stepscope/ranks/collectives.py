"""The communication of a job: calls of all ranks, matched by process group and sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from stepscope.arrays import Floats, Ids, Mask, Times
from stepscope.ranks.calls import CallColumns, CallKind
from stepscope.ranks.sketch import Sketch


class GroupKey(NamedTuple):
    """A kind of communication on one process group; a send and its receive are one kind.

    Attributes:
        kind: such as `allreduce`, or `sendrecv`.
        group, ranks: the process group's name and ranks, as far as recorded.
        pair: sender and receiver, else (-1, -1).
    """

    kind: str
    group: str
    ranks: str
    pair: tuple[int, int] = (-1, -1)

    @property
    def name(self) -> str:
        """The process group, or the two ranks of a `send`."""
        return f"{self.pair[0]}->{self.pair[1]}" if self.pair != (-1, -1) else self.group


@dataclass(frozen=True)
class Matched:
    """The calls of all ranks, and which of them are the same communication.

    Attributes:
        keys: the distinct kinds.
        rank: position of the rank among the sketches, shape (calls,).
        key: index into `keys`, shape (calls,).
        nth: how many of its kind its rank made before in this step, shape (calls,).
        meeting: number of the communication, shape (calls,); -1 where members are missing.
        columns: of the calls, with steps numbered alike on all ranks.
        sends: whether it is a `send`, shape (calls,).
    """

    keys: list[GroupKey]
    rank: Ids
    key: Ids
    nth: Ids
    meeting: Ids
    columns: CallColumns
    sends: Mask

    @property
    def count(self) -> int:
        """How many meetings."""
        return int(self.meeting.max(initial=-1)) + 1

    @cached_property
    def members(self) -> dict[int, list[int]]:
        """The ranks that meet for each key, by position."""
        met = self.meeting >= 0
        ranks = int(self.rank.max(initial=0)) + 1
        pairs = np.unique(self.key[met] * ranks + self.rank[met])
        found: dict[int, list[int]] = {}
        for key, rank in zip(*(part.tolist() for part in np.divmod(pairs, ranks)), strict=True):
            found.setdefault(key, []).append(rank)
        return found

    @cached_property
    def sizes(self) -> Ids:
        """How many ranks meet, shape (meetings,)."""
        return np.bincount(self.meeting[self.meeting >= 0], minlength=self.count)

    @cached_property
    def bytes(self) -> Ids:
        """The bytes of each meeting, -1 if unknown, shape (meetings,)."""
        columns, call = self.columns, self.first
        result: Ids = np.maximum(columns.sent[call], columns.received[call])
        return result

    def calls_of(self, key: int) -> Ids:
        """The calls of one kind."""
        order, first = self._by_key
        return order[first[key] : first[key + 1]]

    @cached_property
    def _by_key(self) -> tuple[Ids, Ids]:
        order = np.argsort(self.key, kind="stable")
        return order, np.searchsorted(self.key[order], np.arange(len(self.keys) + 1))

    def take(self, calls: Ids) -> Matched:
        """Some of the calls; meetings that lose a member are none."""
        left = np.bincount(self.meeting[calls][self.meeting[calls] >= 0], minlength=self.count)
        whole = (self.sizes == left) & (self.sizes > 0)
        number = np.append(np.where(whole, np.cumsum(whole) - 1, -1), -1)
        return Matched(
            self.keys, self.rank[calls], self.key[calls], self.nth[calls],
            number[self.meeting[calls]], CallColumns(*(column[calls] for column in self.columns)),
            self.sends[calls],
        )  # fmt: skip

    @cached_property
    def transfer_ns(self) -> Times:
        """How long each meeting took once its last rank had arrived, shape (meetings,)."""
        return self._least(self.columns.duration_ns)

    @cached_property
    def skew_ns(self) -> Times:
        """From the first to the last arrival of each meeting, shape (meetings,).

        All ranks leave at about the same time, so no clock is needed: who stays longest came first.
        """
        return -self._least(-self.columns.duration_ns) - self.transfer_ns

    @cached_property
    def first(self) -> Ids:
        """A call of each meeting: the one of the last rank to arrive, shape (meetings,)."""
        order = np.lexsort((self.columns.duration_ns, self.meeting))
        order = order[self.meeting[order] >= 0]
        starts = np.flatnonzero(np.diff(self.meeting[order], prepend=-1))
        found: Ids = order[starts]
        return found

    def _least(self, values: Times) -> Times:
        result = np.full(self.count, np.iinfo(np.int64).max)
        met = self.meeting >= 0
        np.minimum.at(result, self.meeting[met], values[met])
        return result


def match_calls(sketches: Sequence[Sketch], places: Sequence[Sequence[int]]) -> Matched:
    """Match the calls of all ranks: the n-th of a kind on a process group in a step is the same.

    Args:
        sketches: of the ranks.
        places: for each sketch the positions of the steps that all ranks have.
    """
    keys: dict[GroupKey, int] = {}
    parts = [_of_rank(row, one, list(place), keys)
             for row, (one, place) in enumerate(zip(sketches, places, strict=True))]  # fmt: skip
    rank, key, sends = (np.concatenate([part[0][row] for part in parts]) for row in range(3))
    columns = CallColumns(*(np.concatenate(column) for column in zip(*(part[1] for part in parts),
                                                                       strict=True)))  # fmt: skip
    nth = _nth(rank, key * 2 + sends, columns)
    meeting = _meetings(rank, key, nth, columns.step, len(columns.step))
    return Matched(list(keys), rank, key, nth, meeting, columns, sends.astype(np.bool_))


def _of_rank(
    row: int, sketch: Sketch, place: list[int], keys: dict[GroupKey, int]
) -> tuple[tuple[Ids, Ids, Ids], CallColumns]:
    """The calls of one rank in the steps of all: rank, key, whether it sends, and the columns."""
    columns = sketch.calls.columns()
    number = np.full(max(len(sketch.steps), 1), -1)
    number[place] = np.arange(len(place))
    kept = np.flatnonzero(number[columns.step] >= 0)
    columns = CallColumns(*(column[kept] for column in columns))
    columns = columns._replace(step=number[columns.step])
    codes = [keys.setdefault(_key(kind, sketch.rank), len(keys)) for kind in sketch.calls.kinds]
    sends = np.array([kind.kind == "send" for kind in sketch.calls.kinds], np.int64)
    key = np.array(codes, np.int64)[columns.kind]
    return (np.full(len(kept), row), key, sends[columns.kind]), columns


def _key(kind: CallKind, rank: int) -> GroupKey:
    if kind.kind not in ("send", "recv") or kind.peer < 0:
        return GroupKey(kind.kind, kind.group, kind.ranks)
    pair = (rank, kind.peer) if kind.kind == "send" else (kind.peer, rank)
    return GroupKey("sendrecv", kind.group, "", pair)


def _nth(rank: Ids, key: Ids, columns: CallColumns) -> Ids:
    """How many calls with the same key each rank made before in the step."""
    order = np.lexsort((columns.start_ns, columns.step, key, rank))
    fresh = np.ones(len(order), np.bool_)
    for values in (rank, key, columns.step):
        if len(order):
            fresh[1:] &= values[order][1:] == values[order][:-1]
    fresh[:1] = False
    place = np.arange(len(order))
    starts = np.maximum.accumulate(np.where(fresh, 0, place))
    nth = np.empty(len(order), np.int64)
    nth[order] = place - starts
    return nth


def _meetings(rank: Ids, key: Ids, nth: Ids, step: Ids, count: int) -> Ids:
    """The number of the meeting of each call; -1 where fewer ranks came than usually do."""
    if not count:
        return np.zeros(0, np.int64)
    most = int(nth.max()) + 1
    code = (key * (int(step.max()) + 1) + step) * most + nth
    _, meeting = np.unique(code, return_inverse=True)
    size = np.bincount(meeting)
    usual = np.zeros(int(key.max()) + 1, np.int64)
    np.maximum.at(usual, key, size[meeting])
    whole = (size[meeting] == usual[key]) & (usual[key] > 1)
    _, numbered = np.unique(meeting[whole], return_inverse=True)
    result = np.full(count, -1, np.int64)
    result[whole] = numbered
    return result


def wire_factor(kind: str, members: int) -> float:
    """The bytes on the wire per byte of the buffer, as NCCL's tests define bus bandwidth.

    Example:
        >>> [wire_factor(kind, 4) for kind in ("allreduce", "allgather", "broadcast")]
        [1.5, 0.75, 1.0]

    Source: NVIDIA nccl-tests, doc/PERFORMANCE.md.
    """
    share = (members - 1) / members
    if kind.startswith("allreduce"):
        return 2 * share
    if kind.startswith(("allgather", "reducescatter", "alltoall")):
        return share
    return 1.0


def bus_bandwidth(matched: Matched, meetings: Ids) -> Floats:
    """Bus bandwidth of meetings, GB/s, nan where bytes are unknown."""
    row = matched.first[meetings]
    size, most = matched.bytes[meetings], int(matched.sizes.max(initial=0)) + 1
    distinct, which = np.unique(
        matched.key[row] * most + matched.sizes[meetings], return_inverse=True
    )
    factor = np.array([
        wire_factor(matched.keys[code // most].kind, code % most) for code in distinct.tolist()
    ])  # fmt: skip
    rate = size * factor[which] / np.maximum(matched.transfer_ns[meetings], 1)
    return np.where(size > 0, rate, np.nan)
