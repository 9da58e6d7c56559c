"""What-ifs of a replayed job: without its findings, in balance, and after two changes.

Source of the balance: Lin et al., Understanding Stragglers in Large Model Training Using What-if
Analysis, 2025: the job is simulated with everything balanced, then with one part left as it was.
Work is balanced to the mean, transfers to the median.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np

from stepscope.base.arrays import Floats, Ids, Mask
from stepscope.facts.annotate.ranks import usual_of_peers
from stepscope.models.ranks.collectives import bus_bandwidth, fixed_ns
from stepscope.models.ranks.passes import KINDS, JobPasses
from stepscope.models.ranks.process_groups import pipeline_places
from stepscope.models.ranks.replay import Replay
from stepscope.models.ranks.sketch import UNSTAGED, JobTable
from stepscope.models.ranks.stragglers import SlowRanks, Straggler
from stepscope.trace.row_order import rows_by_key
from stepscope.trace.sets import Interner, distinct_rows

_MOST_REPLAYS = 12  # findings whose cost is replayed; each takes as long as the report
_MOST_APART = 5  # findings that tell steps apart: each of their 32 combinations is replayed
_MOST_OF_A_KIND = 3  # parts of a kind, each a replay
_LEAST_SHARE = 0.01  # of the slowdown: smaller parts are left out
_NOTABLE = 0.002  # of the step: a stage that differs by less between ranks is in balance
_CERTAIN = 0.02  # of the balanced step: of less, shares say nothing; the error of the replay
_PARTS = ("worker", "micro-batches", "operation", "machine", "pipeline stage", "data-parallel rank")
_COARSE = 2.5  # fifths of the slowdown: parts that explain and resolve as many count as alike
_NOT_COMPUTING = ("host", "data_loading")


class Share(msgspec.Struct, frozen=True):
    """A part of the job that is out of balance."""

    # one of `worker`, `micro-batches`, `operation`, `machine`, `pipeline stage` and `data-parallel rank`
    part: str
    which: str  # the rank, the number or the name; empty for micro-batches
    step_ms: float  # the step if only this part is left as it was
    # of the slowdown, if only this part is left as it was; parts overlap, so shares need not add up to one
    share: float
    resolved: float  # of the slowdown, if only this part is in balance; less where others are as slow


class Slowdown(msgspec.Struct, frozen=True):
    """A job against the same job in balance."""

    replayed_ms: float  # the step as replayed
    balanced_ms: float  # the step with all work and all transfers in balance
    shares: tuple[Share, ...]  # the parts, first those that explain most and whose balance resolves most

    @property
    def ratio(self) -> float:
        """How many times as long the step takes as in balance."""
        return self.replayed_ms / self.balanced_ms if self.balanced_ms else 1.0

    @property
    def lost_ms(self) -> float:
        """What imbalance costs per step."""
        return self.replayed_ms - self.balanced_ms


def with_costs(
    slow: Sequence[SlowRanks], links: Sequence[Straggler], table: JobTable, replay: Replay
) -> tuple[Straggler, ...]:
    """The findings with their costs, the most expensive first; only the largest are replayed."""
    without: list[tuple[Straggler, Callable[[], Replay]]] = [
        *((one.straggler, partial(_less_work, [one], table, replay)) for one in slow),
        *((one, partial(_faster_link, one, table, replay)) for one in links),
    ]
    largest = sorted(without, key=lambda pair: -sum(pair[0].stages.values()))
    measured = replay.step_ms
    costs = [
        msgspec.structs.replace(one, cost_ms=max(measured - changed().step_ms, 0.0))
        for one, changed in largest[:_MOST_REPLAYS]
    ]
    ordered = sorted(costs, key=lambda one: (-one.cost_ms, -one.excess_ms))
    return (*ordered, *(one for one, _ in largest[_MOST_REPLAYS:]))


def together_ms(
    slow: Sequence[SlowRanks], links: Sequence[Straggler], table: JobTable, replay: Replay
) -> float:
    """What the job would gain per step without all findings: each alone may be hidden by others."""
    changed = _less_work(slow, table, replay)
    for link in links:
        changed = _faster_link(link, table, changed)
    return replay.step_ms - changed.step_ms


def steps_alike(slow: Sequence[SlowRanks], links: Sequence[Straggler], table: JobTable) -> Ids:
    """A number for each step, the same where the same findings are slow, shape (steps,)."""
    steps = np.array(table.steps)
    spans = [one.steps or (steps[0], steps[-1]) for one in links]
    masks = [
        *((one.excess_ms > 0).any(axis=0) for one in slow),
        *((steps >= begin) & (steps <= end) for begin, end in spans),
    ][:_MOST_APART]
    numbers: Ids = np.zeros(len(steps), np.int64)
    for mask in masks:
        numbers = 2 * numbers + mask
    return np.unique(numbers, return_inverse=True)[1].astype(np.int64)


def _less_work(slow: Sequence[SlowRanks], table: JobTable, replay: Replay) -> Replay:
    excess = np.zeros_like(table.own_ms)
    for one in slow:
        if one.moves is None:
            excess[one.rows] += one.excess_ms
    less = replay.without(excess) if excess.any() else replay
    for one in slow:
        less = less if one.moves is None else _moved_work(one, one.moves, less)
    return less


def _moved_work(one: SlowRanks, stage: Ids, replay: Replay) -> Replay:
    """What a pipeline stage works longer, spread over all stages."""
    stages, steps = int(stage.max()) + 1, one.excess_ms.shape[1]
    own = replay.own_ms(steps)
    spread = np.median(one.excess_ms, axis=0) / stages
    moved = np.where((stage >= 0)[:, None], spread[None, :], 0.0)
    moved[list(one.rows)] -= one.excess_ms
    return replay.scaled(np.maximum(1 + moved / np.maximum(own, 1e-9), 0))


def _faster_link(one: Straggler, table: JobTable, replay: Replay) -> Replay:
    """The link as fast as others like it; what passes through it saves as much for each byte."""
    keys = replay.matched.keys
    own = _meetings([key.name in one.groups for key in keys], one, table, replay)
    if not own.any():
        return replay
    transfer = np.where(own, replay.transfer / (1 + one.excess), replay.transfer)
    passes = [f"{key.kind} of {key.name}" in one.through for key in keys]
    wider = np.flatnonzero(_meetings(passes, one, table, replay))
    if len(wider):
        matched = replay.matched
        rate = float(np.nanmedian(bus_bandwidth(matched, np.flatnonzero(own))))
        on_wire = bus_bandwidth(matched, wider) * matched.transfer_ns[wider]
        saved = np.nan_to_num(on_wire / rate * (1 - 1 / (1 + one.excess)))
        transfer[wider] = np.maximum(transfer[wider] - saved, transfer[wider] / (1 + one.excess))
    return replace(replay, transfer=transfer)


def _meetings(keys: list[bool], one: Straggler, table: JobTable, replay: Replay) -> Mask:
    matched = replay.matched
    call = matched.first
    first, last = one.steps or (table.steps[0], table.steps[-1])
    step = np.array(table.steps)[matched.columns.step[call]]
    return np.asarray(np.array(keys, np.bool_)[matched.key[call]] & (step >= first) & (step <= last))


class _Part(NamedTuple):
    """A part, the step if only it is left as it was, and the step if only it is in balance."""

    part: str
    which: str
    alone_ms: float
    without_ms: float | None = None

    def share_of(self, measured: float, ideal: float) -> Share:
        share = (self.alone_ms - ideal) / (measured - ideal)
        resolved = share if self.without_ms is None else (measured - self.without_ms) / (measured - ideal)
        return Share(self.part, self.which, self.alone_ms, share, resolved)


@dataclass(frozen=True)
class _Balanced:
    """A job of which all ranks do the same, in balance: each part of a step takes the mean of the ranks."""

    table: JobTable
    original: Replay
    own: Floats  # each rank's own work, ms, shape (ranks, steps)
    transfer: Floats  # in balance, ns, shape (meetings,)

    def step_ms(self, extra: Floats | None = None, slow: Mask | None = None) -> float:
        """The balanced step, but for `extra` work, ms, or `slow` meetings."""
        transfer = self.transfer
        if slow is not None:
            transfer = np.where(slow, self.original.transfer, transfer)
        more = np.zeros_like(self.own) if extra is None else extra
        return replace(self.original.in_balance(more), transfer=transfer).step_ms

    def parts(self) -> Iterator[_Part]:
        """Each part that may be out of balance."""
        table, extra = self.table, self.own - self.own.mean(axis=0, keepdims=True)
        for part, which, ranks in _uneven_ranks(table, self.original, extra.sum(axis=1)):
            yield _Part(part, which, self.step_ms(np.where(ranks[:, None], extra, 0)))
        work = table.work - table.work.mean(axis=0, keepdims=True)
        for row, stage in enumerate(table.stages):
            if np.abs(work[:, row]).max(initial=0) > _NOTABLE * table.step_ms:
                yield _Part("operation", stage, self.step_ms(work[:, row]))
        matched = self.original.matched
        for kind, calls in _uneven_kinds(self.original, self.transfer):
            yield _Part("operation", kind, self.step_ms(slow=calls[matched.first]))


@dataclass(frozen=True)
class _BalancedPipelines:
    """Pipelines in balance: each operation takes the mean of its type, each transfer the median."""

    table: JobTable
    original: Replay
    passes: JobPasses
    transfer: Floats  # in balance, ns, shape (meetings,)

    def step_ms(self) -> float:
        return self._step_ms(np.False_, np.False_)

    def _step_ms(self, work: Mask | np.bool_, calls: Mask | np.bool_) -> float:
        """The balanced step, but for some work, of (kinds, marks), and the transfers of some calls."""
        meeting = self.original.matched.meeting
        measured, even = (np.append(times, 0.0)[meeting] for times in (self.original.transfer, self.transfer))
        own = np.where(work, self.passes.own, self.passes.ideal).sum(axis=0)
        return replace(self.original, own=own, own_transfer=np.where(calls, measured, even)).step_ms

    def _part(self, part: str, which: str, work: Mask | np.bool_, calls: Mask | np.bool_) -> _Part:
        return _Part(part, which, self._step_ms(work, calls), self._step_ms(~work, ~calls))

    def parts(self) -> Iterator[_Part]:
        """Each part that may be out of balance."""
        replay, passes, matched = self.original, self.passes, self.original.matched
        extra, ranks = passes.own - passes.ideal, len(self.table.sketches)
        longer = np.append(replay.transfer - self.transfer, 0.0)[matched.meeting]
        excess: Floats = np.bincount(replay.rank, extra.sum(axis=0), ranks).astype(np.float64)
        excess += np.bincount(matched.rank, longer, ranks)
        for part, which, rows in _uneven_ranks(self.table, replay, excess):
            yield self._part(part, which, rows[replay.rank], rows[matched.rank])
        for row, kind in enumerate(KINDS):
            if np.abs(extra[row]).sum() > 1e6 * _NOTABLE * self.table.step_ms:
                name = UNSTAGED if kind == "other" and UNSTAGED in self.table.stages else kind
                yield self._part("operation", name, np.arange(len(KINDS))[:, None] == row, np.False_)
        for kind, calls in _uneven_kinds(replay, self.transfer):
            yield self._part("operation", kind, np.False_, calls)
        varying, alike = (
            replace(self, passes=passes._replace(own=own, ideal=ideal))
            for own, ideal in ((passes.level, passes.ideal), (passes.own, passes.even))
        )
        yield _Part(
            "micro-batches", "", varying._step_ms(np.True_, np.False_), alike._step_ms(np.False_, np.True_)
        )


def slowdown(table: JobTable, replay: Replay) -> Slowdown:
    """Compare a job with itself in balance."""
    replay = replace(replay, begin=np.zeros(len(replay.begin)))  # all at once
    transfer = _even_transfers(replay)
    balanced: _Balanced | _BalancedPipelines
    if replay.passes:
        balanced = _BalancedPipelines(table, replay, replay.passes, transfer)
    else:
        balanced = _Balanced(table, replay, replay.own_ms(len(table.steps)), transfer)
    measured, ideal = replay.step_ms, balanced.step_ms()
    lost = measured - ideal
    if lost <= _CERTAIN * ideal:  # also if all take no time
        return Slowdown(measured, ideal, ())
    shares = [one.share_of(measured, ideal) for one in balanced.parts()]
    kept = [one for one in shares if one.share >= _LEAST_SHARE]
    # What explains most and resolves most comes first; of what does so alike the smallest part.
    kept.sort(key=lambda one: (_PARTS.index(one.part), -one.share))
    kept.sort(key=lambda one: -round(_COARSE * (one.share + one.resolved)))
    return Slowdown(measured, ideal, tuple(kept))


def _uneven_kinds(replay: Replay, even: Floats) -> Iterator[tuple[str, Mask]]:
    """The kinds of communication whose transfers are not even, and which calls are of each."""
    matched = replay.matched
    kinds = np.array([key.kind for key in matched.keys])[matched.key]
    uneven = np.abs(even - replay.transfer) > 1
    for kind in np.unique(kinds[matched.first[uneven]]).tolist():
        yield str(kind), np.asarray(kinds == kind)


def _ranks_by_part(table: JobTable, replay: Replay) -> Iterator[tuple[str, dict[int, str], Ids]]:
    """Parts of a job, the names of their numbers, and the number of each rank, -1 for none."""
    ranks = [one.rank for one in table.sketches]
    yield "worker", dict(enumerate(map(str, ranks))), np.arange(len(ranks))
    nodes = [one.node for one in table.sketches]
    names = sorted(set(nodes))
    if len(names) > 1:  # a machine with one rank is that worker
        place, counts = {name: number for number, name in enumerate(names)}, Counter(nodes)
        machine = [place[node] if node and counts[node] > 1 else -1 for node in nodes]
        yield "machine", dict(enumerate(names)), np.array(machine, np.int64)
    places = pipeline_places(replay.matched, len(ranks))
    yield from ((part, {}, number) for part, number in places.items() if number.max() > 0)  # not of all


def _uneven_ranks(table: JobTable, replay: Replay, excess: Floats) -> Iterator[tuple[str, str, Mask]]:
    """Of each kind the parts that are farthest from the mean: kind, name, and which ranks are of it."""
    for part, names, number in _ranks_by_part(table, replay):
        known = number >= 0
        total = np.abs(np.bincount(number[known], excess[known]))
        for value in np.argsort(-total, kind="stable")[:_MOST_OF_A_KIND].tolist():
            yield part, names.get(value, str(value)), number == value


def _even_transfers(replay: Replay) -> Floats:
    """The median transfer of meetings of the same kind, size and bytes, in the same turn.

    What pipelines send counts as alike in each direction, however long its micro-batch.
    """
    matched = replay.matched
    call = matched.first
    kind = Interner[str]().codes(key.kind for key in matched.keys).astype(np.int64)[matched.key[call]]
    turn = np.where(matched.bytes >= 0, 0, matched.nth[call])
    way = np.array([np.sign(key.pair[1] - key.pair[0]) for key in matched.keys], np.int64)
    way = way[matched.key[call]]
    size, turn = np.where(way, 0, matched.bytes), np.where(way, 0, turn)
    _, group = distinct_rows(kind, matched.sizes, size, turn, way)
    even = np.empty(len(replay.transfer))
    for part in rows_by_key(group).values():
        even[part] = np.median(replay.transfer[part])
    return even


def whatifs(table: JobTable, replay: Replay) -> dict[str, float]:
    """The step, ms, after each change; changes that do not apply are left out."""
    asked = {"no_straggler": "no_straggler", "bandwidth:factor=2": "bandwidth"}
    return {text: job.step_ms for text, name in asked.items() if (job := job_with(table, replay, name))}


def job_with(
    table: JobTable, replay: Replay, name: str, factor: float = 2.0, latency_us: float = 0.0
) -> Replay | None:
    """The job after `no_straggler` or `bandwidth`, as in `stepscope whatif`, on all its ranks; None
    for a change that sketches do not show."""
    if name == "no_straggler" and len(table.sketches) > 1:
        return _without_stragglers(table, replay)
    if name == "bandwidth" and replay.transfer.any():
        matched, time = replay.matched, replay.transfer
        fixed = fixed_ns(matched.key[matched.first], matched.bytes, time, latency_us * 1e3)
        return replace(replay, transfer=fixed + (time - fixed) / factor)
    return None


def _without_stragglers(table: JobTable, replay: Replay) -> Replay:
    """The job if ranks that work longer than the median peer worked as long as it does.

    Peers are of one pipeline stage, else they run the same kernels; if some rank has none of
    these, all ranks are compared. Without a device, all of the training thread's work counts.
    """
    on_device = any(one.has_device for one in table.sketches)
    computing = [not on_device or stage not in _NOT_COMPUTING for stage in table.stages]
    busy = table.work[:, computing].sum(axis=(1, 2))
    kinds = [frozenset((name, count) for name, (count, _) in one.kernels.items()) for one in table.sketches]
    group = Interner[frozenset[tuple[str, float]]]().codes(kinds).astype(np.int64)
    stage = pipeline_places(replay.matched, len(kinds)).get("pipeline stage")
    peers = group if np.bincount(group).min() > 1 else np.zeros_like(group)
    peers = peers if stage is None else stage
    factor = np.minimum(usual_of_peers(busy, peers) / np.maximum(busy, 1e-9), 1)
    return replay.scaled(np.repeat(factor[:, None], len(table.steps), axis=1))
