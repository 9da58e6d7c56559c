"""The collectives of several ranks, of a trace or of sketches: who meets when, and who waits.

docs/reference/job_replay.md says how they are matched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from stepscope.base.arrays import Floats, Ids, Mask, Rows, Times
from stepscope.errors import ChangeError
from stepscope.models.ranks.calls import PAIRS, CallColumns, CallKind, named_calls, outermost_calls
from stepscope.models.ranks.sketch import Sketch
from stepscope.trace.row_order import place_in_group, places_among, rows_by_key
from stepscope.trace.sets import Interner, distinct_rows
from stepscope.trace.trace import Trace

_NO_PAIR = (-1, -1)  # sender and receiver of what is no send
_LEAST_CALLS = 4  # of a kind; chosen: through fewer any line fits
_LEAST_RATIO = 2  # of the largest size to the smallest; chosen: nearer ones differ by noise
_MOST_OFF = 0.1  # of a call's time, by which half of the calls are off the line; chosen as noise


class GroupKey(NamedTuple):
    """A kind of communication on one process group; a send and its receive are one kind."""

    kind: str  # such as `allreduce`, or `sendrecv`
    group: str  # the process group's name, as far as recorded
    ranks: str  # its ranks, as far as recorded
    pair: tuple[int, int] = _NO_PAIR  # sender and receiver, else (-1, -1)
    size: int = -1  # number of its ranks, -1 if unknown or a pair

    @classmethod
    def of(cls, kind: CallKind, rank: int | None = None) -> GroupKey:
        """The key of a rank's calls; without a rank, a send and its receive stay single."""
        if kind.kind not in PAIRS or kind.peer < 0 or rank is None:
            return cls(kind.kind, kind.group, kind.ranks, size=kind.size)
        pair = (rank, kind.peer) if kind.kind == "send" else (kind.peer, rank)
        return cls("sendrecv", kind.group, "", pair)

    @property
    def name(self) -> str:
        """The process group, or the two ranks of a `send`."""
        return f"{self.pair[0]}->{self.pair[1]}" if self.pair != _NO_PAIR else self.group


@dataclass(frozen=True)
class Matched:
    """The calls of all ranks, and which of them are the same communication: a meeting."""

    keys: list[GroupKey]
    rank: Ids  # position of the rank among the sketches, its number in a trace, shape (calls,)
    key: Ids  # index into `keys`, shape (calls,)
    nth: Ids  # how many of its kind its rank made before in this step, shape (calls,)
    meeting: Ids  # number of the communication, shape (calls,); -1 where members are missing
    columns: CallColumns  # of the calls, with steps numbered alike on all ranks
    sends: Mask  # whether it is a `send`, shape (calls,)

    @classmethod
    def of(cls, keys: list[GroupKey], rank: Ids, key: Ids, columns: CallColumns, sends: Mask) -> Matched:
        nth = _nth(rank, key * 2 + sends, columns)
        is_alone = np.array([one.kind in PAIRS for one in keys], np.bool_)  # of unknown peers
        return cls(keys, rank, key, nth, _meetings(key, nth, columns.step, ~is_alone[key]), columns, sends)

    @property
    def count(self) -> int:
        """How many meetings."""
        return int(self.meeting.max(initial=-1)) + 1

    @cached_property
    def members(self) -> dict[int, list[int]]:
        """The ranks that meet for each key."""
        met = rows_by_key(self.key, np.flatnonzero(self.meeting >= 0))
        return {key: np.unique(self.rank[calls]).tolist() for key, calls in met.items()}

    @cached_property
    def sizes(self) -> Ids:
        """How many ranks meet, shape (meetings,)."""
        return np.bincount(self.meeting[self.meeting >= 0], minlength=self.count)

    @cached_property
    def bytes(self) -> Ids:
        """The bytes of each meeting, -1 if unknown, shape (meetings,)."""
        return np.maximum(self.columns.sent, self.columns.received)[self.first]

    @cached_property
    def calls_by_key(self) -> list[Ids]:
        order = np.argsort(self.key, kind="stable")
        return np.split(order, np.searchsorted(self.key[order], np.arange(1, len(self.keys))))

    def take(self, calls: Ids) -> Matched:
        """Some of the calls; meetings that lose a member are none."""
        left = np.bincount(self.meeting[calls][self.meeting[calls] >= 0], minlength=self.count)
        whole = (self.sizes == left) & (self.sizes > 0)
        number = np.append(np.where(whole, np.cumsum(whole) - 1, -1), -1)
        rank, key, nth = self.rank[calls], self.key[calls], self.nth[calls]
        meeting = number[self.meeting[calls]]
        return Matched(self.keys, rank, key, nth, meeting, self.columns.take(calls), self.sends[calls])

    @cached_property
    def transfer_ns(self) -> Times:
        """How long each meeting took once its last rank had arrived, shape (meetings,)."""
        return self.columns.duration_ns[self.first]

    @cached_property
    def skew_ns(self) -> Times:
        """From the first to the last arrival of each meeting, shape (meetings,)."""
        longest = np.zeros(self.count, np.int64)
        met = self.meeting >= 0
        np.maximum.at(longest, self.meeting[met], self.columns.duration_ns[met])
        return longest - self.transfer_ns

    @cached_property
    def first(self) -> Ids:
        """A call of each meeting: the one of the last rank to arrive, shape (meetings,)."""
        order = np.lexsort((self.columns.duration_ns, self.meeting))
        order = order[self.meeting[order] >= 0]
        return order[np.flatnonzero(np.diff(self.meeting[order], prepend=-1))]

    @cached_property
    def waited_ns(self) -> Times:
        """How long each call waits for the last rank, shape (calls,); 0 where nobody meets."""
        transfer = np.append(self.transfer_ns, 0)[self.meeting]
        return np.where(self.meeting >= 0, self.columns.duration_ns - transfer, 0)

    def late_ns(self, calls: Rows, ranks: int) -> Floats:
        """How much later each rank arrives than the median rank of its groups at some calls, each
        of a meeting, shape (ranks,): less than zero for ranks that wait longer, nan for those that
        take no part."""
        pairs, place = np.unique(self.key[calls] * ranks + self.rank[calls], return_inverse=True)
        waited = np.bincount(place.ravel(), self.waited_ns[calls], len(pairs))
        late = np.full(ranks, np.nan)
        key, rank = np.divmod(pairs, ranks)
        for part in rows_by_key(key).values():
            before = np.nan_to_num(late[rank[part]])
            late[rank[part]] = before + np.median(waited[part]) - waited[part]
        return late

    def last(self, calls: Rows) -> tuple[int, float] | None:
        """The rank that most often arrives last at the meetings of some calls, and its share."""
        meetings = np.unique(self.meeting[calls][self.meeting[calls] >= 0])
        if not len(meetings):
            return None
        ranks, counts = np.unique(self.rank[self.first[meetings]], return_counts=True)
        return int(ranks[counts.argmax()]), float(counts.max() / counts.sum())


def match_calls(sketches: Sequence[Sketch], places: Sequence[Sequence[int]]) -> Matched:
    """Match the calls of sketches; `places` are for each the positions of the steps that all ranks have."""
    keys = Interner[GroupKey]()
    parts = [
        _of_sketch(row, one, list(place), keys)
        for row, (one, place) in enumerate(zip(sketches, places, strict=True))
    ]
    rank, key, sends = (np.concatenate([part[0][row] for part in parts]) for row in range(3))
    columns = [np.concatenate(column) for column in zip(*(part[1] for part in parts), strict=True)]
    return Matched.of(list(keys), rank, key, CallColumns(*columns), sends.astype(np.bool_))


def _of_sketch(
    row: int, sketch: Sketch, place: list[int], keys: Interner[GroupKey]
) -> tuple[tuple[Ids, Ids, Ids], CallColumns]:
    """The calls of one rank in the steps of all: rank, key, whether it sends, and the columns."""
    columns = sketch.calls.columns()
    step = places_among(np.array(place, np.int64), columns.step)
    kept = np.flatnonzero(step >= 0)
    columns = columns.take(kept)._replace(step=step[kept])
    codes = keys.codes(GroupKey.of(kind, sketch.rank) for kind in sketch.calls.kinds)
    sends = np.array([kind.kind == "send" for kind in sketch.calls.kinds], np.int64)
    key = codes.astype(np.int64)[columns.kind]
    return (np.full(len(kept), row), key, sends[columns.kind]), columns


def match_trace(trace: Trace, steps: Ids) -> tuple[Rows, Matched]:
    """The event of each call of all ranks of a trace in some steps, and the calls, matched; sends and
    receives are left single."""
    events = trace.events
    rows = outermost_calls(trace)
    rows = np.sort(rows[np.isin(events["step"][rows], steps)])
    keys = Interner[GroupKey]()
    key = keys.codes(GroupKey.of(kind) for kind, _ in named_calls(trace, rows)).astype(np.int64)
    none, size = np.zeros(len(rows), np.int64), events["bytes"][rows].astype(np.int64)
    columns = CallColumns(*[none] * len(CallColumns._fields))._replace(
        kind=key,
        step=events["step"][rows].astype(np.int64),
        start_ns=events["start_ns"][rows],
        duration_ns=events["duration_ns"][rows],
        sent=size,
        received=size,
        place=none - 1,
        stream=events["track"][rows].astype(np.int64),
    )
    rank = trace["tracks"]["rank"][events["track"][rows]].astype(np.int64)
    return rows, Matched.of(list(keys), rank, key, columns, none > 0)


def _nth(rank: Ids, key: Ids, columns: CallColumns) -> Ids:
    """How many calls with the same key each rank made before in the step."""
    _, alike = distinct_rows(rank, key, columns.step)
    order, nth = np.argsort(columns.start_ns, kind="stable"), np.empty(len(key), np.int64)
    nth[order] = place_in_group(alike[order])
    return nth


def _meetings(key: Ids, nth: Ids, step: Ids, can_meet: Mask) -> Ids:
    """The number of the meeting of each call; -1 where fewer ranks came than usually do."""
    if not len(key):
        return np.zeros(0, np.int64)
    code = (key * (int(step.max()) + 1) + step) * (int(nth.max()) + 1) + nth
    _, meeting = np.unique(code, return_inverse=True)
    size = np.bincount(meeting)[meeting]
    usual = np.zeros(int(key.max()) + 1, np.int64)
    np.maximum.at(usual, key, size)
    whole = (size == usual[key]) & (size > 1) & can_meet
    _, numbered = np.unique(meeting[whole], return_inverse=True)
    result = np.full(len(key), -1, np.int64)
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
    return share if kind.startswith(("allgather", "reducescatter", "alltoall")) else 1.0


def bus_bandwidth(matched: Matched, meetings: Ids) -> Floats:
    """Bus bandwidth of meetings, GB/s, nan where bytes are unknown."""
    key, stated = matched.key[matched.first[meetings]], np.array([one.size for one in matched.keys])
    members = np.maximum(matched.sizes[meetings], stated[key])  # not all of a group may be recorded
    size, most = matched.bytes[meetings], int(members.max(initial=0)) + 1
    distinct, which = np.unique(key * most + members, return_inverse=True)
    factor = np.array(
        [wire_factor(matched.keys[code // most].kind, code % most) for code in distinct.tolist()]
    )
    rate = size * factor[which] / np.maximum(matched.transfer_ns[meetings], 1)
    return np.where(size > 0, rate, np.nan)


def fixed_ns(kind: Ids, size: Ids, time: Floats, unknown_ns: float) -> Floats:
    """What does not grow with the bytes of each call, ns; where no line through the calls of its kind
    shows it, `unknown_ns`, at most the fastest of them; raises ChangeError if that is below 0."""
    if not unknown_ns >= 0:
        raise ChangeError(f"expected latency_us of at least 0, found {unknown_ns / 1e3:g}")
    fixed = np.zeros(len(kind))
    for calls in rows_by_key(kind, np.flatnonzero(kind >= 0)).values():
        shown = _intercept(size[calls], time[calls])
        fixed[calls] = min(unknown_ns, time[calls].min()) if shown is None else shown
    return np.minimum(fixed, time)


def _intercept(size: Ids, time: Floats) -> float | None:
    """Of the line by the median time of each size and the median slope from smaller to larger sizes."""
    sizes, which = np.unique(size, return_inverse=True)
    if len(size) < _LEAST_CALLS or sizes[0] < 0 or sizes[-1] < _LEAST_RATIO * max(sizes[0], 1):
        return None
    usual = np.array([np.median(time[rows]) for rows in rows_by_key(which).values()])
    half = (len(sizes) + 1) // 2
    slope = np.median((usual[half:] - usual[:-half]) / (sizes[half:] - sizes[:-half]))
    fixed = max(float(np.median(usual - slope * sizes)), 0.0)
    off = np.median(np.abs(fixed + slope * size - time) / np.maximum(time, 1))
    return fixed if slope > 0 and off <= _MOST_OFF else None
