"""Groups of ranks that are slow in the same steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.arrays import Floats, Ids, Mask
from stepscope.ranks.excess_work import ExcessWork
from stepscope.ranks.slow_steps import (
    PERSISTENT,
    SlowSteps,
    grown,
    is_no_chance,
    is_rare,
    slow_steps,
)

_IN_TURN_RANKS = 0.2  # of the ranks pause now and then
_IN_TURN_STEPS = 0.01  # of the steps of all ranks
_LEAST_RANKS = 4
_LEAST_PAUSES = 2  # of most of them: what happens once is chance
_OFTEN = 0.03  # of the steps of all ranks: then of one of them is enough, as in jobs of few steps
_TOGETHER = 0.5  # of what a unit works longer: each of its ranks does as much
_STRETCH_OF_UNIT = 0.9  # of its slow steps: of several ranks, a single step is no chance
_SAME_STEPS = 0.5  # of the steps of two ranks: with more in common, they do not pause in turn
_ALIKE = 0.2  # of the excess: machines that differ by less are slow alike


@dataclass(frozen=True)
class SlowGroup:
    """Ranks that are slow in the same steps.

    Attributes:
        rows: the ranks, by position.
        steps: in which.
    """

    rows: list[int]
    steps: SlowSteps

    def is_part_of(self, other: SlowGroup) -> bool:
        """Whether these are ranks of another group, in the same steps or in some where it grows."""
        left_out = int((self.steps.when & ~other.steps.when).sum())
        same = self.steps.overlap(other.steps) > PERSISTENT
        return set(self.rows) <= set(other.rows) and (same or (other.steps.grows and left_out <= 1))

    def is_within(self, other: SlowGroup) -> bool:
        """Whether these are the same ranks as of another group, in some of its steps."""
        inside = bool((other.steps.when | ~self.steps.when).all())
        return set(self.rows) == set(other.rows) and inside


def groups_of(work: ExcessWork, units: Sequence[Ids]) -> tuple[list[SlowGroup], Mask | None]:
    """Ranks that are slow in the same steps, and ranks that pause in turn.

    Ranks that are slow only in some steps count if that is no chance.

    Args:
        work: how much longer each rank works.
        units: numbers of a unit such as a machine for each rank, -1 for none, shape (ranks,): of
            all but the last kind of unit, a group must have all the ranks.

    Returns:
        The groups, and in which steps ranks pause, shape (ranks, steps); None if none do.
    """
    groups = [one for unit in units for one in _whole_units(work, unit)]
    rest = work.without([row for one in groups for row in one.rows])
    pausing = pauses_in_turn(rest.slow)
    rest = rest.without(pausing)
    steps = {
        row: grown(found, rest.excess[row])
        for row in np.flatnonzero(rest.slow.any(axis=1)).tolist()
        if (found := slow_steps(rest.slow[row], least=1)) is not None
    }
    some = [_settled(one, rest) for one in _of_one_unit(steps, units[-1])]
    ranks = len(work.excess)
    certain = [one for one in some if is_no_chance(rest.slow, one.rows, one.steps, ranks)]
    joined = _joined([*groups, *certain], work.excess, units[-1])
    if not pausing:
        return joined, None
    paused = np.zeros_like(work.slow)
    paused[pausing] = work.slow[pausing]
    return joined, paused


def _settled(group: SlowGroup, work: ExcessWork) -> SlowGroup:
    """The group with the steps in which most of its ranks are slow."""
    most = slow_steps(np.median(work.slow[group.rows], axis=0) > 0.5, least=1)
    if most is None:
        return group
    return SlowGroup(group.rows, grown(most, np.median(work.excess[group.rows], axis=0)))


def _whole_units(work: ExcessWork, unit: Ids) -> list[SlowGroup]:
    """Units of which all ranks are slow together, which shows where a single rank's noise hides it.

    A unit is half of the ranks at most.
    """
    members = {
        number: np.flatnonzero(unit == number).tolist()
        for number in np.unique(unit[unit >= 0]).tolist()
    }
    members = {number: rows for number, rows in members.items() if 1 < len(rows) <= len(unit) / 2}
    groups = []
    for rows, excess, slow in work.of_units(list(members.values())):
        steps = slow_steps(slow, least=1, stretch=_STRETCH_OF_UNIT)
        if steps is None:
            continue
        together = np.median(work.excess[rows][:, slow], axis=1)
        if together.min() > _TOGETHER * np.median(together) and is_no_chance(
            work.slow, rows, steps, len(members)
        ):
            groups.append(SlowGroup(rows, grown(steps, excess)))
    return groups


def _of_one_unit(steps: dict[int, SlowSteps], unit: Ids) -> list[SlowGroup]:
    groups: list[SlowGroup] = []
    for row, found in steps.items():
        for group in groups:
            same = unit[group.rows[0]] == unit[row]
            if same and found.overlap(group.steps) > PERSISTENT:
                group.rows.append(row)
                break
        else:
            groups.append(SlowGroup([row], found))
    return groups


def _joined(groups: Sequence[SlowGroup], excess: Floats, unit: Ids) -> list[SlowGroup]:
    """The groups; whole units that are slow alike are one: each would hide what another costs."""
    joined: list[SlowGroup] = []
    sizes = np.bincount(unit)
    for group in groups:
        whole = len(group.rows) == sizes[unit[group.rows[0]]] > 1
        mine = np.median(excess[group.rows][:, group.steps.when])
        for other in joined if whole else ():
            theirs = np.median(excess[other.rows][:, other.steps.when])
            same = group.steps.overlap(other.steps) > PERSISTENT
            is_whole = len(other.rows) == sizes[np.unique(unit[other.rows])].sum()
            if same and is_whole and abs(mine - theirs) <= _ALIKE * max(mine, theirs):
                other.rows.extend(group.rows)
                break
        else:
            joined.append(group)
    return joined


def pauses_in_turn(slow: Mask) -> list[int]:
    """The ranks that are slow now and then, each in other steps, if those are many.

    A rank that is slow far more often than these is none of them.

    Args:
        slow: whether a rank is slow in a step, shape (ranks, steps).
    """
    counts = slow.sum(axis=1)
    rows = [
        row for row in np.flatnonzero(counts).tolist() if _pauses_like_others(counts, row, slow)
    ]
    pauses = np.zeros_like(slow)
    pauses[rows] = slow[rows]
    return rows if in_turn(pauses) and _at_other_times(slow[rows]) else []


def _pauses_like_others(counts: Ids, row: int, slow: Mask) -> bool:
    """Whether a rank pauses no more often than those of the others that pause."""
    others = np.delete(counts, row)
    return not is_rare(int(counts[row]), slow.shape[1], others[others > 0], len(others) + 1)


def _at_other_times(slow: Mask) -> bool:
    """Whether two ranks that pause mostly do so in different steps."""
    together = slow.astype(np.int64) @ slow.T.astype(np.int64)
    alone = np.diag(together)
    share = together / np.minimum(alone[:, None], alone[None, :])
    pairs = len(slow) * (len(slow) - 1)
    return bool((share.sum() - len(slow)) / max(pairs, 1) <= _SAME_STEPS)


def in_turn(slow: Mask) -> bool:
    """Whether many ranks are slow now and then, each in other steps.

    Args:
        slow: whether a rank is slow in a step, shape (ranks, steps).
    """
    pauses = slow.sum(axis=1)
    pauses = pauses[pauses > 0]
    if len(pauses) < max(_LEAST_RANKS, _IN_TURN_RANKS * len(slow)):
        return False
    again = np.median if slow.mean() < _OFTEN else np.max
    return bool(again(pauses) >= _LEAST_PAUSES and slow.mean() >= _IN_TURN_STEPS)
