"""The one test for "slow": of ranks, machines, pipeline stages, and process groups alike.

Units are compared step by step with their peers, the units that are not slow. A unit is slow in a
step if it exceeds the median peer by a share of the step and by a robust z-score. It is reported
if it is slow in all steps, in a stretch of them, or again and again, and that is no chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import log1p
from typing import NamedTuple

import numpy as np

from stepscope.base.arrays import Floats, Ids, Mask

# Every threshold that decides who is slow: unit, reason, source. [jobs]: chosen on the planted
# faults of `benchmarks/ranks_accuracy.py` and `tests/unit/models/ranks`, of which all are found with it.
LEAST_SHARE = 0.03  # of the step: what costs less is not worth a look; docs/howto/slow_rank.md
LEAST_Z = 6.0  # robust deviations: one normal value in 1e9, of 2e6 in 1,024 ranks x 200 steps
HALF = 0.35  # of the units: fewer slow ones shift the median by less than 0.75 deviations
PERSISTENT = 0.8  # of the steps: then all; of two sets of steps in common: the same; [jobs]
STRETCH = 0.9  # of the slow steps: a stretch of steps holds as many, else they recur; [jobs]
GAP = 2  # slow steps that a step in a stretch outweighs which is not slow; [jobs]
CHANCE = 0.01  # significance level for the whole job
HICCUPS = 0.004  # of the steps of a healthy rank are slow, at least: one pause in 250; [jobs]
IN_TURN = 0.2  # of the ranks, and
LEAST_IN_TURN = 4  # ranks pause at other times: a property of the program, not of a rank; [jobs]
SAME_TIME = 0.5  # of the steps of two ranks: with more in common, they do not pause in turn
TOGETHER = 0.5  # of what a unit works longer: each of its ranks does as much
ALIKE = 0.2  # of the excess: groups that differ by less are slow for one reason; [jobs]
GROWTH = 2.0  # times as large at the end: the excess grows
GROWTH_FIT = 0.7  # of the variance that a straight line explains: it grows steadily
BEGUN = 0.5  # of what the line says, give or take a quarter of a step's growth: it has begun
LEAST_FIT = 4  # steps: of fewer, a line says nothing
LEAST_PERIOD = 3  # steps, and so two gaps: fewer show no period
PAIR = 2  # units: none shows the spread of the others


class SlowSteps(NamedTuple):
    """Steps in which something is slow."""

    when: Mask  # which, shape (steps,)
    recurs: bool = False  # whether they are single steps again and again, not a stretch or all
    grows: bool = False  # whether what is slow takes longer from step to step

    @property
    def period(self) -> int:
        """Every how many steps it recurs; 0 where that varies."""
        if not self.recurs or self.number < LEAST_PERIOD:
            return 0
        gaps = set(np.diff(np.flatnonzero(self.when)).tolist())
        return int(gaps.pop()) if len(gaps) == 1 else 0

    @property
    def number(self) -> int:
        return int(self.when.sum())

    def is_like(self, other: SlowSteps) -> bool:
        """Whether these are nearly the same steps."""
        both, either = (self.when & other.when).sum(), (self.when | other.when).sum()
        return bool(both > PERSISTENT * max(1, either))


@dataclass(frozen=True)
class SlowGroup:
    """Ranks that are slow for one reason."""

    rows: list[int]
    steps: SlowSteps  # in which; of ranks in turn those in which any is
    slow: Mask | None = None  # of ranks in turn the steps of each, shape (rows, steps); else None

    @property
    def in_turn(self) -> bool:
        """Whether each rank is slow in other steps than the others."""
        return self.slow is not None

    @property
    def count(self) -> int:
        """In how many steps a rank is slow, where not in all or all of a stretch; else 0."""
        if self.slow is not None:
            return int(np.median(self.slow.sum(axis=1)))
        return self.steps.number if self.steps.recurs else 0

    def span(self, steps: list[int]) -> tuple[int, int] | None:
        """The first and the last step; None for all steps of all ranks."""
        positions = np.flatnonzero(self.steps.when).tolist()
        is_all = self.steps.when.all() and not self.in_turn
        return None if is_all else (steps[positions[0]], steps[positions[-1]])

    @property
    def when(self) -> Mask:
        """In which steps each rank is slow, shape (rows, steps)."""
        if self.slow is not None:
            return self.slow
        return np.broadcast_to(self.steps.when, (len(self.rows), len(self.steps.when)))


@dataclass(frozen=True, eq=False)
class Excess:
    """How much longer units take than their peers, ms."""

    ms: Floats  # shape (units, steps)
    noise: Floats  # what peers differ by, shape (steps,)
    peers: Mask  # which units are compared with, shape (units, steps)
    least_ms: float

    @classmethod
    def of(cls, values: Floats, step_ms: float) -> Excess:
        """Of what each unit takes, shape (units, steps), with steps of a length of `step_ms`."""
        peers = peers_of(values, step_ms)
        excess = values - usual(values, peers)
        return cls(excess, _noise(values, excess, peers), peers, LEAST_SHARE * step_ms)

    def without(self, rows: Sequence[int]) -> Excess:
        """Some units take no longer than usual."""
        excess = self.ms.copy()
        excess[list(rows)] = 0
        return replace(self, ms=excess)

    @cached_property
    def slow(self) -> Mask:
        """Whether a unit is slow in a step, shape (units, steps)."""
        return self._exceeds(self.ms, self.noise)

    def of_units(self, units: Sequence[list[int]]) -> tuple[Floats, Mask]:
        """The excess of the median rank of each unit, and whether that is slow: (units, steps).

        The median rank of several is steadier than one, but units may differ by more than ranks.
        """
        middle = np.array([np.median(self.ms[rows], axis=0) for rows in units])
        healthy = np.array([self.peers[rows].mean(axis=0) > 0.5 for rows in units])
        between = np.zeros(self.noise.shape)
        if len(units) > PAIR:
            known = healthy.any(axis=0)
            between[known] = spread(np.where(healthy, middle, np.nan)[:, known], axis=0)
        sizes = np.array([len(rows) for rows in units])
        noise = np.maximum(self.noise / np.sqrt(sizes)[:, None], between)
        return middle, self._exceeds(middle, noise)

    def _exceeds(self, excess: Floats, noise: Floats) -> Mask:
        return np.asarray(excess > np.maximum(self.least_ms, LEAST_Z * noise))


def usual(values: Floats, peers: Mask | None = None) -> Floats:
    """What a unit that is not slow takes of `values`, shape (units, n): the median one, of two the
    faster one; of its peers where they are given, same shape."""
    if peers is not None and not peers.all():
        return np.asarray(np.nanmedian(np.where(peers, values, np.nan), axis=0))
    return np.asarray(np.median(values, axis=0) if len(values) > PAIR else values.min(axis=0))


def spread(values: Floats, axis: int) -> Floats:
    """The robust standard deviation around zero; nan counts as no value."""
    middle = np.nanmedian if np.isnan(values).any() else np.median
    return np.asarray(middle(np.abs(values), axis=axis) * 1.4826)


def peers_of(values: Floats, step_ms: float) -> Mask:
    """The units to compare with, shape (units, steps) as the values: all, or where they fall into
    two halves, over all steps or in some of them, the faster one."""
    if len(values) <= PAIR:
        return np.ones(values.shape, np.bool_)
    over_all = _faster_half(np.median(values, axis=1, keepdims=True), step_ms)
    if not over_all.all():
        return np.broadcast_to(over_all, values.shape)
    return _faster_half(values, step_ms)


def _faster_half(values: Floats, step_ms: float) -> Mask:
    """The faster half of each column, all units of those that do not fall in two."""
    units, columns = values.shape
    order = np.sort(values, axis=0)
    first, last = int(HALF * units), int(np.ceil((1 - HALF) * units))
    gaps = np.diff(order, axis=0)[first:last]
    if not len(gaps):
        return np.ones(values.shape, np.bool_)
    at = first + gaps.argmax(axis=0)
    apart = (gaps.max(axis=0) >= LEAST_SHARE * step_ms) & (units - at - 1 >= HALF * units)
    around = spread(order - np.median(order, axis=0), axis=0)
    for column in np.flatnonzero(apart).tolist():
        halves = np.split(order[:, column], [at[column] + 1])
        around[column] = max(float(spread(half - np.median(half), axis=0)) for half in halves)
    apart &= gaps.max(axis=0) >= LEAST_Z * np.maximum(around, np.median(around))
    return np.asarray(~apart | (values <= order[at, np.arange(columns)]))


def _noise(values: Floats, excess: Floats, peers: Mask) -> Floats:
    """What peers differ by in each step, shape (steps,).

    Of two, it is the changes from step to step, of the steadier unit or of what they differ by: a
    slow unit may be unsteady, and the work of both may change.
    """
    changes = np.concatenate([values, np.diff(values, axis=0)])
    over_time = spread(changes - np.median(changes, axis=1, keepdims=True), axis=1).min()
    if len(excess) <= PAIR:
        return np.full(values.shape[1], over_time)
    each = spread(excess if peers.all() else np.where(peers, excess, np.nan), axis=0)
    each = np.where(peers.sum(axis=0) <= PAIR, np.maximum(each, over_time), each)
    return np.asarray(np.maximum(each, np.median(each)))


def slow_groups(work: Excess, units: Sequence[Ids]) -> list[SlowGroup]:
    """Whole units that are slow, then single ranks, and ranks that pause in turn; `units` are
    numbers of a unit such as a machine, shape (ranks,), -1 for none. Some ranks of a unit of the
    last kind may be slow together."""
    whole = [group for unit in units for group in _whole_units(work, unit)]
    rest = work.without([row for group in whole for row in group.rows])
    pausing = pausing_in_turn(rest.slow)
    rest = rest.without(pausing)
    single = [
        SlowGroup([row], steps)
        for row in np.flatnonzero(rest.slow.any(axis=1)).tolist()
        if (steps := slow_steps(rest.slow[row])) is not None
    ]
    groups = _joined(whole, work)
    for group in _joined(single, work, units[-1]):
        steps = _of_most(group.rows, rest)
        if steps and is_no_chance(rest.slow, group.rows, steps, len(work.ms)):
            groups.append(SlowGroup(group.rows, steps))
    if pausing:
        slow = work.slow[pausing]
        groups.append(SlowGroup(pausing, SlowSteps(np.asarray(slow.any(axis=0)), recurs=True), slow))
    return groups


def _whole_units(work: Excess, unit: Ids) -> list[SlowGroup]:
    """Units of which all ranks are slow together, which shows where a rank's noise hides it.

    A unit is half of the ranks at most.
    """
    members = [np.flatnonzero(unit == one).tolist() for one in np.unique(unit[unit >= 0]).tolist()]
    members = [rows for rows in members if 1 < len(rows) <= len(unit) / 2]
    if not members:
        return []
    groups = []
    for rows, excess, slow in zip(members, *work.of_units(members), strict=True):
        steps = slow_steps(slow)
        if steps is None:
            continue
        together = np.median(work.ms[rows][:, slow], axis=1)
        if together.min() > TOGETHER * np.median(together) and is_no_chance(
            work.slow, rows, steps, len(members)
        ):
            groups.append(SlowGroup(rows, grown(steps, excess)))
    return groups


def _of_most(rows: list[int], work: Excess) -> SlowSteps | None:
    """The steps in which most of some ranks are slow, or the first of them."""
    most = np.median(work.slow[rows], axis=0) > 0.5
    steps = slow_steps(most if most.any() else work.slow[rows[0]])
    return grown(steps, np.median(work.ms[rows], axis=0)) if steps else None


def _joined(groups: Sequence[SlowGroup], work: Excess, unit: Ids | None = None) -> list[SlowGroup]:
    """Groups that are slow alike in the same steps are one: each would hide what another costs.
    Ranks of the same unit, which by default none has, need not be alike."""
    joined: list[SlowGroup] = []
    for group in groups:
        mine = np.median(work.ms[group.rows][:, group.steps.when])
        for other in joined:
            theirs = np.median(work.ms[other.rows][:, other.steps.when])
            alike = abs(mine - theirs) <= ALIKE * max(mine, theirs)
            together = unit is not None and unit[group.rows[0]] == unit[other.rows[0]]
            if (alike or together) and group.steps.is_like(other.steps):
                other.rows[:] = sorted([*other.rows, *group.rows])
                break
        else:
            joined.append(SlowGroup([*group.rows], group.steps))
    return joined


def slow_steps(slow: Mask) -> SlowSteps | None:
    """All steps, the stretch that holds most slow steps, or single ones; None if none is slow.

    Args:
        slow: whether something is slow, shape (steps,).
    """
    if slow.mean() >= PERSISTENT:
        return SlowSteps(np.ones(len(slow), np.bool_))
    if not slow.any():
        return None
    start, end = _densest(slow)
    if slow[start:end].sum() < STRETCH * slow.sum():
        return SlowSteps(slow.copy(), recurs=True)
    when = np.zeros(len(slow), np.bool_)
    when[start:end] = True
    return SlowSteps(when)


def _densest(slow: Mask) -> tuple[int, int]:
    """The stretch with most slow steps, a few others between them allowed."""
    total = np.concatenate([[0], np.cumsum(np.where(slow, 1, -GAP))])
    lowest = np.minimum.accumulate(total)
    end = int((total - lowest).argmax())
    return int(np.flatnonzero(total[: end + 1] == lowest[end])[-1]), end


def grown(steps: SlowSteps, excess: Floats) -> SlowSteps:
    """The steps from where an excess begins: if it grows steadily, as when a device heats up, or at once."""
    at = np.flatnonzero(steps.when)
    if steps.recurs or len(at) < LEAST_FIT:
        return steps
    slope, base = np.polyfit(at, excess[at], 1)
    rest = excess[at] - (base + slope * at)
    explained = 1 - float(rest.var() / max(excess[at].var(), 1e-12))
    first, last = base + slope * at[0], base + slope * at[-1]
    if not (slope > 0 and explained > GROWTH_FIT and last > GROWTH * max(first, 0.0)):
        begin = int((excess >= BEGUN * np.median(excess)).argmax()) if steps.when.all() else 0
        jumps = begin and excess[:begin].max() < BEGUN * excess[begin:].min()
        return SlowSteps(np.arange(len(excess)) >= begin) if jumps else steps
    when, before = steps.when.copy(), base + slope * np.arange(at[0])
    begun = (before > -slope / 4) & (excess[: at[0]] > BEGUN * before - slope / 4)
    when[int(np.flatnonzero(~begun).max(initial=-1)) + 1 : at[0]] = True
    return SlowSteps(when, grows=True)


def is_no_chance(slow: Mask, rows: list[int], steps: SlowSteps, candidates: int) -> bool:
    """Whether units are slow together more often than units that are as slow as the others;
    `candidates` is how many such groups of units there are in the job."""
    if steps.when.all():
        return True
    counts = slow.sum(axis=1)
    others = np.ones(len(counts), np.bool_)
    others[rows] = False
    count = int(np.median(slow[rows][:, steps.when].sum(axis=1)))
    span = len(steps.when) if steps.recurs else steps.number
    places = len(steps.when) - span + 1
    chance = places * _at_least(count, span, _usual_rate(counts[others], len(steps.when)))
    return chance ** len(rows) * candidates < CHANCE


def pausing_in_turn(slow: Mask) -> list[int]:
    """The ranks that are slow now and then, each in other steps, if those are many; `slow` has
    shape (ranks, steps).

    What happens once to each is chance, and a rank that is slow far more often is none of them.
    """
    counts, (ranks, steps) = slow.sum(axis=1), slow.shape
    pausing = counts > 0
    rows = []
    for row in np.flatnonzero(pausing).tolist():
        others = counts[pausing & (np.arange(ranks) != row)]
        if ranks * _at_least(int(counts[row]), steps, _usual_rate(others, steps)) >= CHANCE:
            rows.append(row)
    many = len(rows) >= max(LEAST_IN_TURN, IN_TURN * ranks) and counts[rows].max() > 1
    if not many or _at_least(int(counts[rows].sum()), slow.size, HICCUPS) >= CHANCE:
        return []
    return rows if _at_other_times(slow[rows]) else []


def _at_other_times(slow: Mask) -> bool:
    """Whether two ranks that pause mostly do so in different steps."""
    together = slow.astype(np.int64) @ slow.T.astype(np.int64)
    alone = np.diag(together)
    share = together / np.minimum(alone[:, None], alone[None, :])
    pairs = len(slow) * (len(slow) - 1)
    return bool((share.sum() - len(slow)) / max(pairs, 1) <= SAME_TIME)


def _usual_rate(counts: Ids, steps: int) -> float:
    """In how many of its steps a unit is slow, by those in which some are."""
    return max(float((counts.sum() + 0.5) / (len(counts) * steps + 1)), HICCUPS)


def _at_least(count: int, steps: int, rate: float) -> float:
    """The chance of `count` or more of `steps`, each of a probability of `rate`."""
    rate = min(rate, 1 - 1e-9)
    if not count:
        return 1.0
    more = np.arange(1, steps + 1)
    logs = steps * log1p(-rate) + np.cumsum(np.log((steps - more + 1) / more * rate / (1 - rate)))
    return float(np.exp(logs[count - 1 :]).sum())
