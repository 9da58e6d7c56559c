"""The collectives of a step by rank: who arrives last at each of them, and who waits."""

from __future__ import annotations

from dataclasses import dataclass, fields

import msgspec
import numpy as np

from stepscope.arrays import Ids, Mask, Rows, Times
from stepscope.ranks.calls import ranks_in_short
from stepscope.ranks.collective_calls import collective_calls
from stepscope.ranks.meetings import Meetings, meetings_of
from stepscope.summary.selected_steps import SelectedSteps
from stepscope.trace.trace import Trace

_MOST_ROWS = 40
_MS = 1e-6


class ArrivalRow(msgspec.Struct, frozen=True):
    """A collective of the step, or several of one kind; times are means per step.

    Attributes:
        kind: such as `allreduce`.
        groups: its process groups: the name of one, or how many of how many ranks.
        nth: which of the step's collectives of this kind and group, from 1; None for all of them.
        calls: collectives in a step.
        late_ms: how much later each rank of the matrix arrives than the median rank of its group;
            less than zero for one that waits longer, None for one that takes no part.
        last_rank: the rank that most often arrives last.
        last_share: the share of the collectives in which it does.
        waiting_rank: the rank that waits longest for the last one.
        wait_ms: how long it waits.
        event: id of the last rank's call at the collective that it keeps waiting longest.
    """

    kind: str
    groups: str
    nth: int | None
    calls: float
    late_ms: list[float | None]
    last_rank: int
    last_share: float
    waiting_rank: int
    wait_ms: float
    event: int


class ArrivalMatrix(msgspec.Struct, frozen=True):
    """How late each rank arrives at the collectives that the trace holds of several ranks.

    Attributes:
        steps: numbers of the steps that times are means of.
        step_ms: the step length.
        ranks: that take part in any, ascending.
        rows: in the order in which they begin; the most costly of many.
        left: how many rows are left out.
    """

    steps: list[int]
    step_ms: float
    ranks: list[int]
    rows: list[ArrivalRow]
    left: int


@dataclass(frozen=True)
class _Calls:
    """The calls at which several ranks meet, each column of shape (calls,).

    Attributes:
        event: id of the call.
        rank: its rank.
        key: number of its kind and process group.
        nth: how many calls with the same key come before it in its step.
        meeting: number of its collective.
        members: how many ranks take part in it.
        is_last: whether its rank arrives last.
        wait_ns: how long its rank waits for the last one.
    """

    event: Rows
    rank: Ids
    key: Ids
    nth: Ids
    meeting: Ids
    members: Ids
    is_last: Mask
    wait_ns: Times

    def take(self, rows: Rows | Mask) -> _Calls:
        """Some of them."""
        return _Calls(*(getattr(self, one.name)[rows] for one in fields(self)))


def arrival_matrix(trace: Trace, rank: int, step: int | None = None) -> ArrivalMatrix:
    """How late each rank comes to each collective of a step.

    A row is the n-th collective of its kind on its process group in a step. If there are many, it
    is all those on the group, and if there are many groups, all those of one kind on groups of one
    size. All ranks leave a collective together, so the one that stays shortest arrived last.

    Args:
        trace: an annotated trace.
        rank: whose steps.
        step: number of one step; by default all but a warm-up step.

    Raises:
        TraceError: if there is no such rank or step.
    """
    selected = SelectedSteps(trace, rank, step)
    calls, keys, key = collective_calls(trace, selected.steps["step"])
    met = _met(calls, key, meetings_of(trace, calls, key, [kind for kind, *_ in keys]))
    row, single = _numbered(met, keys)
    cost = np.bincount(row, met.wait_ns)
    shown = np.sort(np.argsort(-cost, kind="stable")[:_MOST_ROWS]).tolist()
    ranks = np.unique(met.rank)
    rows = [_row(met.take(row == one), keys, single, ranks, selected.count) for one in shown]
    step_ms = selected.length_ns * _MS / selected.count
    numbers = selected.steps["step"].tolist()
    return ArrivalMatrix(numbers, step_ms, ranks.tolist(), rows, len(cost) - len(rows))


def _met(calls: Rows, key: Ids, met: Meetings) -> _Calls:
    """The calls that the trace holds on several ranks."""
    wait = met.duration_ns - met.transfer_ns
    members = np.bincount(met.meeting)[met.meeting] if len(calls) else met.meeting
    every = _Calls(calls, met.rank, key, met.nth, met.meeting, members, met.comes_last, wait)
    return every.take(met.others)


def _numbered(met: _Calls, keys: list[tuple[str, ...]]) -> tuple[Ids, bool]:
    """The row of each call, by when rows begin; and whether a row is one collective of a step."""
    names = [kind for kind, *_ in keys]
    kind = np.array([names.index(name) for name in names], np.int64)[met.key]
    for columns in ([met.key, met.nth], [met.key], [kind, met.members]):
        _, first, row = np.unique(np.stack(columns), axis=1, return_index=True, return_inverse=True)
        if len(first) <= _MOST_ROWS:
            break
    place = np.argsort(np.argsort(met.event[first]))
    numbered: Ids = place[row.ravel()].astype(np.int64)
    return numbered, columns[-1] is met.nth


def _row(
    mine: _Calls, keys: list[tuple[str, ...]], single: bool, ranks: Ids, steps: int
) -> ArrivalRow:
    last = mine.take(mine.is_last)
    latest, times = _most(last.rank)
    waited = np.bincount(np.searchsorted(ranks, mine.rank), mine.wait_ns, len(ranks))
    return ArrivalRow(
        kind=keys[int(mine.key[0])][0], groups=_groups(mine, keys),
        nth=int(mine.nth[0]) + 1 if single else None, calls=len(last.rank) / steps,
        late_ms=_late_ms(mine, ranks, steps), last_rank=latest, last_share=times / len(last.rank),
        waiting_rank=int(ranks[waited.argmax()]), wait_ms=float(waited.max()) * _MS / steps,
        event=_costliest(mine, last.take(last.rank == latest)),
    )  # fmt: skip


def _groups(mine: _Calls, keys: list[tuple[str, ...]]) -> str:
    """The process group by its name or else its ranks, or how many groups there are."""
    numbers = np.unique(mine.key)
    if len(numbers) > 1:
        return f"{len(numbers)} groups of {int(mine.members[0])}"
    _, name, ranks, _ = keys[int(numbers[0])]
    return name or ranks_in_short(ranks)


def _late_ms(mine: _Calls, ranks: Ids, steps: int) -> list[float | None]:
    """How much less each rank waits than the median rank of its group; None if it takes no part."""
    late = np.full(len(ranks), np.nan)
    for one in np.unique(mine.key).tolist():
        group = mine.take(mine.key == one)
        members, place = np.unique(group.rank, return_inverse=True)
        total = np.bincount(place.ravel(), group.wait_ns)
        at = np.searchsorted(ranks, members)
        late[at] = np.nan_to_num(late[at]) + np.median(total) - total
    return [None if np.isnan(ns) else round(ns * _MS / steps, 6) for ns in late.tolist()]


def _most(ranks: Ids) -> tuple[int, int]:
    """The most frequent rank, and how often it occurs."""
    found, count = np.unique(ranks, return_counts=True)
    return int(found[count.argmax()]), int(count.max())


def _costliest(mine: _Calls, last: _Calls) -> int:
    """The call of `last` that keeps somebody waiting longest."""
    meetings, place = np.unique(mine.meeting, return_inverse=True)
    longest = np.zeros(len(meetings), np.int64)
    np.maximum.at(longest, place.ravel(), mine.wait_ns)
    cost = longest[np.searchsorted(meetings, last.meeting)]
    return int(last.event[cost.argmax()])
