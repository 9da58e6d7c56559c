"""Replays a job from its sketches: each rank's own work, and the communication between ranks.

docs/reference/job_replay.md has the rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from stepscope.base.arrays import Floats, Ids
from stepscope.base.compiled.library import function
from stepscope.models.ranks.calls import CallColumns
from stepscope.models.ranks.collectives import GroupKey, Matched
from stepscope.models.ranks.passes import JobPasses, Passes, job_passes
from stepscope.models.ranks.sketch import JobTable, Sketch
from stepscope.models.ranks.slow_groups import usual
from stepscope.trace.row_order import begins_run, grouped, inverse, rows_by_key

_MOST_CALLS = 40_000  # are replayed, in 0.1 s
_NOTABLE_NS = 50_000  # clocks of a machine agree within that
_LEAST_COMMON = 3  # collectives that two clocks are compared by


@dataclass(frozen=True, eq=False)
class Replay:
    """A job that can be replayed, times in ns."""

    matched: Matched
    begin: Floats  # when each rank begins, shape (ranks,)
    # of each mark (an arrival, a wait, or the end of a step), shape (marks,); marks of a rank are
    # consecutive, in order of its progress
    rank: Ids
    step: Ids
    own: Floats  # the rank's own work before each mark, shape (marks,)
    part: Ids  # of each mark: the part of the work, until a rank's next arrival or the end of its step
    passes: JobPasses | None  # the same by kind, and in balance; None for a job without pipelines
    graph: ReplayGraph
    transfer: Floats  # of each meeting once all have arrived, shape (meetings,)
    weights: Floats  # how many steps of the job each replayed one is an example of, shape (steps,)
    own_transfer: Floats | None = None  # of each call, where sides of a meeting differ, shape (calls,)

    def scaled(self, factor: Floats) -> Replay:
        """With each rank's own work in each step scaled; `factor` has shape (ranks, steps)."""
        return replace(self, own=self.own * factor[self.rank, self.step])

    def without(self, excess_ms: Floats) -> Replay:
        """With so much less own work, ms, shape (ranks, steps): where ranks make the same calls,
        taken from the longest parts."""
        ranks, steps = excess_ms.shape
        if not self._makes_same_calls:
            own = self.own_ms(steps)
            return self.scaled(1 - np.minimum(excess_ms / np.maximum(own, 1e-9), 1))
        parts = self._parts
        others = ~excess_ms.any(axis=1)
        longer = np.maximum(parts - usual(parts[others] if others.any() else parts), 0)
        code = self._code_of_parts(steps)
        total = np.bincount(code, longer.ravel(), ranks * steps)
        share = np.minimum(excess_ms.ravel() * 1e6 / np.maximum(total, 1), 1)
        return self._with_parts(parts.ravel() - longer.ravel() * share[code])

    def in_balance(self, extra_ms: Floats) -> Replay:
        """With the mean own work of all ranks, and what each does more (or less), ms, shape (ranks,
        steps): part by part where all meet in the same order."""
        if self._is_in_step:
            return self._with_parts(self._even_parts(extra_ms))
        own = self.own_ms(extra_ms.shape[1])
        target = np.maximum(own.mean(axis=0, keepdims=True) + extra_ms, 0)
        return self.scaled(np.where(own > 0, target / np.maximum(own, 1e-9), 1))

    @cached_property
    def _makes_same_calls(self) -> bool:
        """Whether ranks make as many calls and send nothing to each other, so that parts are alike."""
        parts = np.bincount(self.rank[self._last_of_parts], minlength=len(self.begin))
        return not self.matched.sends.any() and len(set(parts.tolist())) == 1

    @cached_property
    def _is_in_step(self) -> bool:
        """Whether every rank makes the same calls in the same order, with all the others."""
        ranks, matched = len(self.begin), self.matched
        calls = np.bincount(matched.rank, minlength=ranks)
        if not self._makes_same_calls or calls.min() < calls.max():
            return False
        meeting = matched.meeting[np.argsort(matched.rank, kind="stable")].reshape(ranks, -1)
        return bool((meeting >= 0).all() and (meeting == meeting[:1]).all())

    @property
    def _parts(self) -> Floats:
        """Own work of each part, ns, shape (ranks, parts). Ranks wait at different places in them."""
        return np.bincount(self.part, self.own).astype(np.float64).reshape(len(self.begin), -1)

    @property
    def _last_of_parts(self) -> Ids:
        return np.flatnonzero(np.diff(self.part, append=-1))

    def _code_of_parts(self, steps: int) -> Ids:
        """The rank and step of each part."""
        return np.asarray((self.rank * steps + self.step)[self._last_of_parts])

    def _with_parts(self, target: Floats) -> Replay:
        """With parts of another length: what lies before each mark in proportion."""
        parts = self._parts.ravel()
        own = self.own * (target / np.maximum(parts, 1e-9))[self.part]
        own[self._last_of_parts] += np.where(parts > 0, 0, target)
        return replace(self, own=own)

    def _even_parts(self, extra_ms: Floats) -> Floats:
        """The mean of each part; what a rank does more lies where it does more than the mean."""
        ranks, steps = extra_ms.shape
        parts = self._parts
        mean = np.broadcast_to(parts.mean(axis=0), parts.shape).ravel()
        code = self._code_of_parts(steps)
        extra = extra_ms.ravel()[code] * 1e6
        apart = np.maximum((parts.ravel() - mean) * np.sign(extra), 0)
        total = np.bincount(code, apart, ranks * steps)[code]
        return np.asarray(np.maximum(mean + extra * apart / np.maximum(total, 1), 0))

    def own_ms(self, steps: int) -> Floats:
        """Each rank's own work in each step, ms, shape (ranks, steps); 0 where not replayed."""
        total = np.bincount(self.rank * steps + self.step, self.own, len(self.begin) * steps) / 1e6
        return total.reshape(len(self.begin), steps).astype(np.float64)

    @property
    def step_ms(self) -> float:
        """The length of a step, the mean of ranks and steps."""
        last = np.append(np.flatnonzero(np.diff(self.rank) | np.diff(self.step)), len(self.rank) - 1)
        ends = self.times[last].reshape(len(self.begin), -1)
        lengths = np.diff(ends, axis=1, prepend=self.begin[:, None]).mean(axis=0)
        return float(lengths @ self.weights / self.weights.sum() / 1e6)

    @cached_property
    def times(self) -> Floats:
        """When each rank comes to each mark, shape (marks,)."""
        by_call = np.append(self.transfer, 0.0)[self.matched.meeting]
        transfer = by_call if self.own_transfer is None else self.own_transfer
        return self.graph.times(self.begin, self.own, transfer)[: len(self.rank)]


def build_replay(table: JobTable, matched: Matched, alike: Ids | None = None) -> Replay:
    """Make a job replayable: all steps whose calls are known, or some of very many calls.

    Those are evenly spread, among steps with the same number in `alike`, shape (steps,), in which the same
    ranks are slow; by default all. Calls that make ranks wait for each other in a circle are not what was
    recorded, so then the ranks meet at the end of each step only, as where no communication is known.
    """
    own_ns = table.own_ms * 1e6
    if alike is None:
        alike = np.zeros(len(table.steps), np.int64)
    if matched.count:
        replay = _replay(table, matched, own_ns, alike)
        if not np.isnan(replay.times).any():
            return replay
    return _replay(table, _ends_of_steps(own_ns), own_ns, alike)


def _replay(table: JobTable, matched: Matched, own_ns: Floats, alike: Ids) -> Replay:
    kept, weights = _replayed_steps(matched, alike)
    calls = np.flatnonzero(np.isin(matched.columns.step, kept))
    matched = matched.take(calls)
    columns, ranks = matched.columns, len(table.sketches)
    rank = np.concatenate([matched.rank, matched.rank, np.repeat(np.arange(ranks), len(kept))])
    step = np.concatenate([columns.step, columns.step, np.tile(kept, ranks)])
    ends = own_ns[:, kept].ravel()
    progress = np.concatenate([columns.arrival_ns, columns.waited_ns, ends])
    kind = np.repeat([0, 1, 2], [len(calls), len(calls), len(ends)])
    order = np.lexsort((kind, progress, step, rank))
    place = inverse(order)
    rank, step = rank[order], step[order]
    progress = progress[order].astype(np.float64)
    # The work before each mark: since the mark before, or since the step began.
    fresh = begins_run(rank) | begins_run(step)
    own: Floats = np.maximum(np.where(fresh, progress, np.diff(progress, prepend=0.0)), 0)
    closes = (kind[order] == 0) | np.append(fresh[1:], True)  # a part: an arrival, or the step's last mark
    part = np.cumsum(closes) - closes
    passes = None
    if matched.sends.any():
        of_ranks = [Passes.unpack(one.calls.passes) for one in table.sketches]
        passes = job_passes(of_ranks, table.places, rank, step, progress, own)
    return Replay(
        matched,
        _begin_times(table.sketches, matched),
        rank,
        step,
        own,
        part,
        passes,
        ReplayGraph.of(matched, rank, place[: len(calls)], place[len(calls) : 2 * len(calls)]),
        matched.transfer_ns.astype(np.float64),
        weights,
    )


def _replayed_steps(matched: Matched, alike: Ids) -> tuple[Ids, Floats]:
    """Steps with calls, of very many calls some of each group, and how many steps each is of."""
    calls = np.bincount(matched.columns.step[matched.meeting >= 0], minlength=len(alike))
    known = np.flatnonzero(calls)
    share = min(_MOST_CALLS / max(calls.sum(), 1), 1.0)
    weights = np.zeros(len(alike))
    for steps in rows_by_key(alike, known).values():
        count = max(1, int(share * len(steps)))
        spread = np.linspace(0, len(steps) - 1, count).round().astype(np.int64)
        weights[steps[spread]] = len(steps) / count
    kept = np.flatnonzero(weights)
    return kept, weights[kept]


def _ends_of_steps(own_ns: Floats) -> Matched:
    """Where no communication is known: all ranks wait for each other when a step ends."""
    ranks, steps = own_ns.shape
    rank, step = np.repeat(np.arange(ranks), steps), np.tile(np.arange(steps), ranks)
    zero, end = np.zeros(ranks * steps, np.int64), own_ns.ravel().astype(np.int64)
    columns = CallColumns(zero, step, end, zero, end, end, zero - 1, zero - 1, zero, zero)
    return Matched([GroupKey("barrier", "", "")], rank, zero, zero, step, columns, zero > 0)


def _begin_times(sketches: Sequence[Sketch], matched: Matched) -> Floats:
    """When each rank's first step begins, ns since the first does, shape (ranks,).

    Ranks leave a collective at about the same time, so the ends of shared collectives tell how far
    two clocks differ. Ranks that share none with the others begin with the first.
    """
    begin = np.array([one.calls.begin_ns for one in sketches], np.int64)
    columns = matched.columns
    end = begin[matched.rank] + columns.start_ns + columns.duration_ns
    ahead, known = np.zeros(len(sketches), np.int64), np.zeros(len(sketches), np.bool_)
    # Of these nobody gets the result before all have contributed.
    kinds, members = ("all", "reducescatter", "sendrecv"), matched.members
    together = (key for key in members if matched.keys[key].kind.startswith(kinds))
    waiting = sorted(together, key=lambda key: -len(members[key]))
    known[members[waiting[0]][:1] if waiting else []] = True
    while usable := [key for key in waiting if known[members[key]].any()]:
        for key in usable:
            if not known[members[key]].all():
                _compare(matched, key, end, ahead, known)
        waiting = [key for key in waiting if not known[members[key]].all()]
    if not known.any():
        return np.zeros(len(sketches))
    corrected = np.where(known, begin - ahead, (begin - ahead)[known].min())
    return np.asarray(corrected - corrected[known].min(), np.float64)


def _compare(matched: Matched, key: int, end: Ids, ahead: Ids, known: np.ndarray) -> None:
    """Set the clocks of the ranks of one kind of collective by those already known."""
    rows = np.flatnonzero((matched.key == key) & (matched.meeting >= 0))
    ranks = np.unique(matched.rank[rows])
    reference = rows[known[matched.rank[rows]]][::-1]  # the first call of a meeting is set last
    when = np.zeros(matched.count, np.int64)
    when[matched.meeting[reference]] = end[reference] - ahead[matched.rank[reference]]
    for rank in ranks[~known[ranks]].tolist():
        mine = rows[matched.rank[rows] == rank]
        apart = end[mine] - when[matched.meeting[mine]]
        middle = int(np.median(apart))
        known[rank] = True
        if len(apart) >= _LEAST_COMMON and abs(middle) >= _NOTABLE_NS:
            ahead[rank] = middle


@dataclass(frozen=True, eq=False)
class ReplayGraph:
    """Edges between marks, arrivals at meetings, and meetings, in order of where they begin."""

    first: Ids  # of each node its first edge, then the number of edges, shape (nodes + 1,)
    target: Ids  # the node that each edge leads to, shape (edges,)
    own: Ids  # the mark before whose own work an edge takes its time, or -1, shape (edges,)
    transfer: Ids  # the call from whose transfer an edge takes its time, or -1, shape (edges,)
    begins: Ids  # the first mark of each rank, shape (ranks,)

    @classmethod
    def of(cls, matched: Matched, rank: Ids, arrives: Ids, waits: Ids) -> ReplayGraph:
        """The graph of the calls of all ranks, by the mark of each call's arrival, and of the wait
        for it; marks of a `rank` are consecutive."""
        source, target, own, transfer = _edges(matched, rank, arrives, waits)
        order, first = grouped(source, len(rank) + len(arrives) + matched.count)
        begins = np.flatnonzero(np.diff(rank, prepend=-1))
        return cls(first, target[order], own[order], transfer[order], begins)

    def times(self, begin: Floats, own: Floats, transfer: Floats) -> Floats:
        """When each node is reached, ns, shape (nodes,); nan in a circle; `transfer`: of each call."""
        ready = np.zeros(len(self.first) - 1)
        ready[self.begins] = begin + own[self.begins]
        delay = np.append(own, 0.0)[self.own] + np.append(transfer, 0.0)[self.transfer]
        return longest_path(ready, self.first, self.target, delay)


def _edges(matched: Matched, rank: Ids, arrives: Ids, waits: Ids) -> tuple[Ids, Ids, Ids, Ids]:
    """Source, target, and the mark or the call whose time an edge takes."""
    arrival, meeting = len(rank), len(rank) + len(arrives)
    chain = np.arange(1, len(rank))[rank[1:] == rank[:-1]]
    met = np.flatnonzero(matched.meeting >= 0)
    number = matched.meeting[met]
    before, after = _before_on_stream(matched, met)
    earlier = matched.meeting[before]
    none, nothing = np.full(len(met), -1), np.full(len(before), -1)
    parts = [
        (chain - 1, chain, chain, np.full(len(chain), -1)),
        (arrives[met], arrival + met, none, none),
        (arrival + met, meeting + number, none, none),
        (meeting + number, waits[met], none, met),
        (meeting + earlier, arrival + after, nothing, before),
    ]
    source, target, *times = (np.concatenate(column).astype(np.int64) for column in zip(*parts, strict=True))
    return source, target, times[0], times[1]


def _before_on_stream(matched: Matched, met: Ids) -> tuple[Ids, Ids]:
    """Pairs of calls that follow each other on one stream of one rank."""
    columns, rank = matched.columns, matched.rank
    order = met[np.lexsort((columns.start_ns[met], columns.step[met], columns.stream[met], rank[met]))]
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
    """
    at = np.array(ready, np.float64)
    edges = (np.ascontiguousarray(column, np.int64) for column in (first, target))
    delays = np.ascontiguousarray(delay, np.float64)
    if not function("stepscope_longest_path")(len(at), *edges, delays, at):
        raise MemoryError(f"too little memory for the times of {len(at)} nodes")
    return at
