"""What imbalance costs a job, and how much of it comes from which part.

Source: Lin et al., Understanding Stragglers in Large Model Training Using What-if Analysis, 2025:
the job is simulated with everything balanced, then with one part left as it was. Work is balanced
to the mean, transfers to the median.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from stepscope.arrays import Floats, Ids, Mask
from stepscope.ranks.job_table import JobTable
from stepscope.ranks.pipelines import pipeline_places
from stepscope.ranks.replay import Replay

_MOST_OF_A_KIND = 3  # each costs a replay
_LEAST_SHARE = 0.01
_NOTABLE = 0.002  # of the balanced step
_CERTAIN = 0.02  # of the balanced step: of less, shares say nothing


@dataclass(frozen=True)
class Share:
    """A part of the job that is out of balance.

    Attributes:
        part: `worker`, `machine`, `pipeline stage`, `data-parallel rank`, `operation` or
            `micro-batches`.
        which: the rank, the number or the name; empty for micro-batches.
        step_ms: the step if only this part is left as it was.
        share: of the slowdown; parts overlap, so shares need not add up to one.
    """

    part: str
    which: str
    step_ms: float
    share: float


@dataclass(frozen=True)
class Slowdown:
    """A job against the same job in balance.

    Attributes:
        replayed_ms: the step as replayed.
        balanced_ms: the step with all work and all transfers in balance.
        shares: the parts, the largest share first.
    """

    replayed_ms: float
    balanced_ms: float
    shares: tuple[Share, ...]

    @property
    def ratio(self) -> float:
        """How many times as long the step takes as in balance."""
        return self.replayed_ms / self.balanced_ms if self.balanced_ms else 1.0


@dataclass(frozen=True)
class _Balanced:
    """What a replay is balanced to.

    Attributes:
        own: each rank's own work, ms, shape (ranks, steps).
        work: of each stage, less the mean of the ranks, ms, shape (ranks, stages, steps).
        original: the job as it was.
        transfer: in balance, ns, shape (meetings,).
    """

    own: Floats
    work: Floats
    original: Replay
    transfer: Floats

    def step_ms(
        self, extra: Floats | None = None, own: Floats | None = None, slow: Mask | None = None
    ) -> float:
        """The balanced step, but for `extra` work, other micro-batches, or `slow` meetings."""
        transfer = self.transfer
        if slow is not None:
            transfer = np.where(slow, self.original.transfer, transfer)
        replay = self.original.with_own(self.original.even if own is None else own)
        more = np.zeros_like(self.own) if extra is None else extra
        return replay.in_balance(more).with_transfer(transfer).step_ms


def slowdown(table: JobTable, replay: Replay) -> Slowdown:
    """Compare a job with itself in balance."""
    replay = replay.together()
    balanced = _balance(table, replay)
    measured, ideal = replay.step_ms, balanced.step_ms()
    lost = measured - ideal
    if lost < _CERTAIN * ideal:
        return Slowdown(measured, ideal, ())
    found = [
        Share(part, which, step_ms, (step_ms - ideal) / lost)
        for part, which, step_ms in _parts(table, balanced)
    ]
    kept = [one for one in found if one.share >= _LEAST_SHARE]
    return Slowdown(measured, ideal, tuple(sorted(kept, key=lambda one: -one.share)))


def _balance(table: JobTable, replay: Replay) -> _Balanced:
    steps = len(table.steps)
    return _Balanced(
        own=replay.own_ms(steps), work=table.work - table.work.mean(axis=0, keepdims=True),
        original=replay, transfer=_even_transfers(replay),
    )  # fmt: skip


def _parts(table: JobTable, balanced: _Balanced) -> Iterator[tuple[str, str, float]]:
    """Part, which, and the step if only it is left as it was."""
    extra = balanced.own - balanced.own.mean(axis=0, keepdims=True)
    ranks = [one.rank for one in table.sketches]
    only = partial(_only, extra)
    excess = extra.sum(axis=1)
    rows = np.arange(len(ranks))
    for row in _most_uneven(excess, rows):
        yield "worker", str(ranks[row]), balanced.step_ms(only(rows == row))
    names, machine = _machines(table)
    for value in _most_uneven(excess, machine):
        yield "machine", names[value], balanced.step_ms(only(machine == value))
    for part, number in pipeline_places(balanced.original.matched, len(ranks)).items():
        for value in _most_uneven(excess, number):
            yield part, str(value), balanced.step_ms(only(number == value))
    for row, stage in enumerate(table.stages):
        if np.abs(balanced.work[:, row]).max(initial=0) > _NOTABLE * table.step_ms:
            yield "operation", stage, balanced.step_ms(balanced.work[:, row])
    yield from _communication(balanced)
    if not np.array_equal(balanced.original.even, balanced.original.own):
        yield "micro-batches", "", balanced.step_ms(own=balanced.original.own)


def _machines(table: JobTable) -> tuple[list[str], Ids]:
    """The names of the machines, and that of each rank; -1 where it is the only or an unknown one.

    A machine with one rank is that worker.
    """
    nodes = [one.node for one in table.sketches]
    names = sorted(set(nodes))
    if len(names) < 2:
        return names, np.full(len(nodes), -1)
    found = [names.index(node) if node and nodes.count(node) > 1 else -1 for node in nodes]
    return names, np.array(found, np.int64)


def _most_uneven(excess: Floats, group: Ids) -> list[int]:
    """The groups of ranks that are farthest from the mean; -1 is no group."""
    known = group >= 0
    total = np.abs(np.bincount(group[known], excess[known])) if known.any() else np.zeros(0)
    return [int(row) for row in np.argsort(-total, kind="stable")[:_MOST_OF_A_KIND]]


def _only(extra: Floats, rows: Mask) -> Floats:
    return np.where(rows[:, None], extra, 0)


def _communication(balanced: _Balanced) -> Iterator[tuple[str, str, float]]:
    matched = balanced.original.matched
    kinds = np.array([key.kind for key in matched.keys])[matched.key[matched.first]]
    uneven = np.abs(balanced.transfer - balanced.original.transfer) > 1
    for kind in np.unique(kinds[uneven]).tolist():
        yield "operation", str(kind), balanced.step_ms(slow=kinds == kind)


def _even_transfers(replay: Replay) -> Floats:
    """The median transfer of meetings of the same kind, size and bytes, in the same turn."""
    matched = replay.matched
    if not matched.count:
        return replay.transfer
    call = matched.first
    kinds = {kind: row for row, kind in enumerate(sorted({key.kind for key in matched.keys}))}
    kind = np.array([kinds[key.kind] for key in matched.keys])[matched.key[call]]
    turn = np.where(matched.bytes >= 0, 0, matched.nth[call])
    return _within(np.stack([kind, matched.sizes, matched.bytes, turn]), replay.transfer, np.median)


def _within(labels: np.ndarray, values: Floats, summary: Callable[[Floats], float]) -> Floats:
    """Each value replaced by the summary of those with the same labels, columns of `labels`."""
    _, group = np.unique(labels, axis=1, return_inverse=True)
    order = np.argsort(group.ravel(), kind="stable")
    ends = np.cumsum(np.bincount(group.ravel()))
    result = np.empty(len(values))
    for part in np.split(order, ends[:-1]):
        result[part] = summary(values[part])
    return result
