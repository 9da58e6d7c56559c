"""The same collective on several ranks of one trace: how long it takes, and who comes last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.arrays import Ids, Mask, Rows, Times
from stepscope.trace.trace import Trace

_PAIRS = ("send", "recv")


@dataclass(frozen=True)
class Meetings:
    """Which calls are the same collective, each column of shape (calls,).

    Attributes:
        rank: of each call.
        duration_ns: of each call.
        nth: how many calls of its rank with the same key come before it in its step.
        meeting: number of its collective.
        others: whether the trace holds it on other ranks.
        transfer_ns: the shortest duration of its collective: all leave it together.
        comes_last: whether this call is the shortest.
    """

    rank: Ids
    duration_ns: Times
    nth: Ids
    meeting: Ids
    others: Mask
    transfer_ns: Times
    comes_last: Mask

    def members(self, calls: Rows) -> int | None:
        """The ranks that take part in most of some calls; None if the trace holds one rank."""
        shared = self.meeting[calls[self.others[calls]]]
        sizes = np.bincount(self.meeting)[shared]
        return int(np.median(sizes)) if len(sizes) else None

    def last(self, calls: Rows) -> tuple[int | None, float | None]:
        """The rank that most often arrives last at some calls, and at which share of them."""
        same = np.isin(self.meeting, self.meeting[calls[self.others[calls]]])
        ranks, counts = np.unique(self.rank[same & self.comes_last], return_counts=True)
        if not len(ranks):
            return None, None
        return int(ranks[counts.argmax()]), float(counts.max() / counts.sum())

    def late_ms(self, key: Ids, steps: int) -> dict[int, float]:
        """How much later each rank arrives than the median rank, ms per step, over all keys.

        Args:
            key: number of the kind and process group of each call.
            steps: in which the calls are.
        """
        waited = self.duration_ns - self.transfer_ns
        late = dict.fromkeys(np.unique(self.rank[self.others]).tolist(), 0.0)
        for one in np.unique(key[self.others]).tolist():
            mine = self.others & (key == one)
            ranks, place = np.unique(self.rank[mine], return_inverse=True)
            total = np.bincount(place, waited[mine])
            for rank, ns in zip(ranks.tolist(), (np.median(total) - total).tolist(), strict=True):
                late[rank] += ns / 1e6 / steps
        return late


def meetings_of(trace: Trace, calls: Rows, key: Ids, kinds: Sequence[str]) -> Meetings:
    """Match calls: the n-th with the same key in a step is the same collective on every rank.

    A kind of which ranks make different numbers of calls in a step is not matched in that step,
    and neither are sends and receives, which ranks make with different peers.

    Args:
        trace: an annotated trace.
        calls: events that communicate, shape (calls,).
        key: number of the kind and process group, shape (calls,).
        kinds: the kind of each key.
    """
    events = trace.events
    rank = trace["tracks"]["rank"][events["track"][calls]].astype(np.int64)
    step, start = events["step"][calls].astype(np.int64), events["start_ns"][calls]
    duration = events["duration_ns"][calls]
    nth = _nth(np.stack([rank, key, step]), start)
    _, meeting = np.unique(np.stack([key, step, nth]), axis=1, return_inverse=True)
    meeting = meeting.ravel()
    shared = _whole(rank, np.stack([key, step]))
    shared &= ~np.isin(key, [number for number, kind in enumerate(kinds) if kind in _PAIRS])
    meeting = np.where(shared, meeting, meeting.max(initial=-1) + 1 + np.arange(len(calls)))
    order = np.lexsort((duration, meeting))
    first = np.ones(len(order), np.bool_)
    first[1:] = meeting[order][1:] != meeting[order][:-1]
    last = np.zeros(len(calls), np.bool_)
    last[order[first]] = True
    least = np.full(meeting.max(initial=-1) + 1, 0, np.int64)
    least[meeting[last]] = duration[last]
    others = np.bincount(meeting)[meeting] > 1 if len(calls) else np.zeros(0, np.bool_)
    return Meetings(rank, duration, nth, meeting, others, least[meeting], last & others)


def _nth(labels: Ids, start: Times) -> Ids:
    """How many earlier calls have the same labels, shape (calls,)."""
    order = np.lexsort((start, *labels))
    place = np.arange(len(order))
    fresh = np.ones(len(order), np.bool_)
    fresh[1:] = (labels[:, order[1:]] != labels[:, order[:-1]]).any(axis=0)
    nth = np.empty(len(order), np.int64)
    nth[order] = place - np.maximum.accumulate(np.where(fresh, place, 0))
    return nth


def _whole(rank: Ids, labels: Ids) -> Mask:
    """Whether all ranks that make calls with the same labels make as many of them."""
    _, group = np.unique(labels, axis=1, return_inverse=True)
    group = group.ravel()
    pairs, count = np.unique(np.stack([group, rank]), axis=1, return_counts=True)
    groups = int(group.max(initial=-1)) + 1
    most, least = np.zeros(groups, np.int64), np.full(groups, np.iinfo(np.int64).max)
    np.maximum.at(most, pairs[0], count)
    np.minimum.at(least, pairs[0], count)
    whole: Mask = (most == least)[group]
    return whole
