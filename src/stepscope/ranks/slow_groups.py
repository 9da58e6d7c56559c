"""Groups of ranks that are slow in the same steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.arrays import Floats, Ids, Mask
from stepscope.ranks.slow_steps import PERSISTENT, SlowSteps, beyond_chance, grown, slow_steps

_IN_TURN_RANKS = 0.2  # of the ranks pause now and then
_IN_TURN_STEPS = 0.01  # of the steps of all ranks
_LEAST_RANKS = 4
_LEAST_PAUSES = 2  # of most of them: what happens once is chance
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


def groups_of(slow: Mask, excess: Floats, units: Sequence[Ids]) -> list[SlowGroup]:
    """Ranks that are slow in the same steps: of one unit, such as a machine.

    A rank that is slow only now and then counts if that is no chance.

    Args:
        slow: whether a rank is slow in a step, shape (ranks, steps).
        excess: how much longer it works, same shape.
        units: numbers of a unit for each rank, -1 for none, shape (ranks,): of all but the last
            kind of unit, a group must have all the ranks.
    """
    steps = {
        row: grown(found, excess[row])
        for row in np.flatnonzero(slow.any(axis=1)).tolist()
        if (found := slow_steps(slow[row])) is not None
    }
    groups = [one for unit in units[:-1] for one in _whole_units(steps, unit)]
    groups += _joined(_of_one_unit(steps, units[-1]), excess, units[-1])
    certain = beyond_chance(slow)
    return [
        _settled(one, slow, excess)
        for one in groups
        if not one.steps.recurs or len(one.rows) > 1 or certain[one.rows[0]]
    ]


def _settled(group: SlowGroup, slow: Mask, excess: Floats) -> SlowGroup:
    """The group with the steps in which most of its ranks are slow."""
    most = slow_steps(np.median(slow[group.rows], axis=0) > 0.5)
    steps = group.steps if most is None else grown(most, np.median(excess[group.rows], axis=0))
    return SlowGroup(group.rows, steps)


def _whole_units(steps: dict[int, SlowSteps], unit: Ids) -> list[SlowGroup]:
    """Units of which all ranks are slow together; `steps` loses them."""
    groups = []
    for number in sorted({unit[row] for row in steps} - {-1}):
        rows = np.flatnonzero(unit == number).tolist()
        if not 1 < len(rows) <= len(unit) / 2 or not all(row in steps for row in rows):
            continue
        first = steps[rows[0]]
        if all(steps[row].overlap(first) > PERSISTENT for row in rows):
            groups.append(SlowGroup(rows, first))
            for row in rows:
                del steps[row]
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


def in_turn(slow: Mask) -> bool:
    """Whether many ranks are slow now and then, each in other steps.

    Args:
        slow: whether a rank is slow in a step, shape (ranks, steps).
    """
    pauses = slow.sum(axis=1)
    pauses = pauses[pauses > 0]
    return bool(
        len(pauses) >= max(_LEAST_RANKS, _IN_TURN_RANKS * len(slow))
        and np.median(pauses) >= _LEAST_PAUSES
        and slow.mean() >= _IN_TURN_STEPS
    )
