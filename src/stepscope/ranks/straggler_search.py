"""Finds ranks whose own work is longer than the median rank's: which, when and in which stages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.arrays import Floats, Ids, Mask
from stepscope.ranks.causes import OF_STAGE, Kernels, machine_or, other_processes
from stepscope.ranks.excess_work import ExcessWork
from stepscope.ranks.job_table import JobTable
from stepscope.ranks.slow_groups import SlowGroup, groups_of
from stepscope.ranks.slow_steps import PERSISTENT
from stepscope.ranks.stragglers import Straggler, longer, stage_in_words
from stepscope.ranks.usual_work import HALF, LEAST_SPREADS, faster_half, spread, usual

_NOTABLE = 0.005  # of the step: a further stage of a straggler is named
_NOTABLE_PART = 0.1  # of its largest excess, likewise
_ALSO = 3
_MOST_NAMES = 4
_IN_TURN = {
    "host": "pauses at other times on each rank, as of Python's garbage collection",
    "data_loading": "a batch is late now and then, at other times on each rank",
}


@dataclass(frozen=True, eq=False)
class Found:
    """A straggler, and the work that it does more than the others.

    Attributes:
        straggler: without its cost.
        rows: its ranks, by position.
        excess_ms: shape (rows, steps).
    """

    straggler: Straggler
    rows: Sequence[int]
    excess_ms: Floats


def find_stragglers(table: JobTable, pipeline_stage: Ids | None = None) -> list[Found]:
    """Ranks whose own work is longer than the median rank's; costs are not known yet.

    Args:
        table: the ranks.
        pipeline_stage: of each rank, -1 for none, shape (ranks,).
    """
    if len(table.sketches) < 2:
        return []
    search = _Search(table)
    nodes = _numbered([one.node for one in table.sketches])
    units = [nodes] if pipeline_stage is None else [pipeline_stage, nodes]
    groups: list[tuple[str, SlowGroup]] = []
    turns: list[tuple[str, Mask]] = []
    for stage in table.stages:
        work = search.work(stage)
        found, paused = groups_of(work, units)
        groups += [(stage, one) for one in found]
        if paused is not None:
            turns.append((stage, paused))
    known = [row for _, one in groups for row in one.rows]
    known += [row for _, paused in turns for row in np.flatnonzero(paused.any(axis=1)).tolist()]
    groups += search.groups_by_all_work(units, known)
    search = _Search(table, without=[row for _, one in groups for row in one.rows])
    distinct = search.distinct(_merged(groups))
    return [*(search.found(*one) for one in distinct), *(search.in_turn(*one) for one in turns)]


def _machines(table: JobTable, rows: Sequence[int]) -> str:
    """The machines of which these are all ranks; empty if there is another rank on one."""
    names = list(dict.fromkeys(table.sketches[row].node for row in rows))
    every = {row for row, one in enumerate(table.sketches) if one.node in names}
    if "" in names or every != set(rows):
        return ""
    if len(names) > _MOST_NAMES:
        return f"{', '.join(names[:_MOST_NAMES])} and {len(names) - _MOST_NAMES} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _in_all_stages(others: Sequence[Mask]) -> Mask:
    """The ranks that are compared with in every stage; all ranks in steps in which none is.

    Those of the faster half in one stage may be those of the slower half in another.
    """
    compared: Mask = np.all(others, axis=0)
    return compared | ~compared.any(axis=0)


def _numbered(names: Sequence[str]) -> Ids:
    numbers = {name: row for row, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[name] for name in names], np.int64)


def _merged(groups: Iterable[tuple[str, SlowGroup]]) -> list[tuple[SlowGroup, list[str]]]:
    """The groups, each with the stages in which the same ranks are slow in the same steps."""
    merged: list[tuple[SlowGroup, list[str]]] = []
    for stage, group in groups:
        for other, stages in merged:
            if group.rows == other.rows and group.steps.overlap(other.steps) > PERSISTENT:
                stages.append(stage)
                break
        else:
            merged.append((group, [stage]))
    return merged


class _Search:
    """What each rank does more than the usual one, by stage, ms, each of shape (ranks, steps).

    Args:
        table: the ranks.
        without: ranks that are slow, by position: not to compare with.
    """

    def __init__(self, table: JobTable, without: Sequence[int] = ()) -> None:
        self.table = table
        work = {stage: table.work[:, row] for row, stage in enumerate(table.stages)}
        others = np.ones(table.length.shape, np.bool_)
        if HALF * len(others) <= len(set(without)) < len(others):
            others[list(without)] = False  # of fewer slow ranks, the median rank is none
        self._others = {
            stage: faster_half(values, table.step_ms) if others.all() else others
            for stage, values in work.items()
        }
        self.usual = {stage: usual(values, self._others[stage]) for stage, values in work.items()}
        self.excess = {stage: values - self.usual[stage] for stage, values in work.items()}
        self._compared = _in_all_stages(list(self._others.values()))
        rest = table.own_ms - table.work.sum(axis=1)
        self._rest = rest - usual(rest, self._compared)
        self._own = table.own_ms - usual(table.own_ms, self._compared)

    def distinct(
        self, groups: Iterable[tuple[SlowGroup, list[str]]]
    ) -> list[tuple[SlowGroup, list[str]]]:
        """The groups without those that are a part of another: some of its ranks or steps."""
        kept: list[tuple[SlowGroup, list[str]]] = []
        for group, stages in sorted(
            groups, key=lambda one: -len(one[0].rows) * one[0].steps.number
        ):
            if not any(self._is_part(group, stages, *one) for one in kept):
                kept.append((group, stages))
        return kept

    def _is_part(
        self, group: SlowGroup, stages: Sequence[str], other: SlowGroup, names: Sequence[str]
    ) -> bool:
        """Whether a group is slow for the same reason as another."""
        computes = not set(OF_STAGE) & {*stages, *names}
        return (group.is_part_of(other) or (computes and group.is_within(other))) and all(
            name in names or self._is_slower(self.excess[name], other) for name in stages
        )

    def work(self, stage: str) -> ExcessWork:
        """How much longer ranks work in a stage."""
        values = self.table.work[:, self.table.stages.index(stage)]
        return ExcessWork.of(values, self._others[stage], self.table.step_ms)

    def groups_by_all_work(
        self, units: Sequence[Ids], known: Sequence[int]
    ) -> list[tuple[str, SlowGroup]]:
        """Groups with the stage that is longest: all work is steadier than that of one stage.

        Args:
            units: as for `groups_of`.
            known: ranks that are slow in some stage, by position.
        """
        values = self.table.work.sum(axis=1)
        work = ExcessWork.of(values, faster_half(values, self.table.step_ms), self.table.step_ms)
        groups, _ = groups_of(work.without(known), units)
        return [(self._longest(one), one) for one in groups]

    def _longest(self, group: SlowGroup) -> str:
        """The stage in which these ranks take longer by most."""
        return max(self.excess, key=lambda stage: self._typical(self.excess[stage], group))

    def found(self, group: SlowGroup, stages: Sequence[str]) -> Found:
        """What a group of ranks is, and does more."""
        rows, when, table = group.rows, group.steps.when, self.table
        part = {name: self._typical(self.excess[name], group) for name in self.excess}
        further = [
            name for name in self.excess
            if name not in stages and self._is_slower(self.excess[name], group)
        ]  # fmt: skip
        excess = sum((self.excess[name] for name in (*stages, *further)), start=np.zeros(1))
        if self._is_slower(self._own - excess, group, either=True):
            excess = self._own  # it works longer in no stage in particular, too
        least = max(_NOTABLE * table.step_ms, _NOTABLE_PART * max(part[name] for name in stages))
        named = [name for name in (*stages, *further) if name in stages or part[name] > least]
        named.sort(key=lambda name: -part[name])
        straggler = self._straggler(group, {name: part[name] for name in named})
        return Found(straggler, rows, np.where(when, np.maximum(excess[rows], 0), 0))

    def _typical(self, excess: Floats, group: SlowGroup) -> float:
        return float(np.median(excess[group.rows][:, group.steps.when]))

    def _is_slower(self, excess: Floats, group: SlowGroup, either: bool = False) -> bool:
        """Whether the ranks differ from the others by more than these among each other."""
        inside = excess[:, group.steps.when]
        each = np.median(inside, axis=1)
        mine = np.median(inside[group.rows], axis=0)
        typical = float(np.median(mine))
        others = self._compared[:, group.steps.when].mean(axis=1) > 0.5
        others[group.rows] = False
        between = float(spread(each[others], axis=0)) if others.any() else 0.0
        over_time = float(spread(mine - typical, axis=0)) / np.sqrt(len(mine))
        size = abs(typical) if either else typical
        return size > LEAST_SPREADS * max(between, over_time) and size > 0

    def _straggler(self, group: SlowGroup, stages: dict[str, float]) -> Straggler:
        table, rows, steps = self.table, group.rows, group.steps
        first = next(iter(stages))
        causes = self._causes(group, stages)
        return Straggler(
            ranks=tuple(sorted(table.sketches[row].rank for row in rows)),
            node=_machines(table, rows),
            stage=first,
            steps=steps.span(table.steps),
            excess_ms=stages[first],
            excess=self._ratio(first, group, stages[first]),
            cause=machine_or(causes) or causes[first],
            stages=stages,
            count=steps.number if steps.recurs else 0,
            period=steps.period,
            grows=steps.grows,
            also=self._also(group, stages, causes),
        )

    def _causes(self, group: SlowGroup, stages: dict[str, float]) -> dict[str, str]:
        """The cause of each stage; those that compute have one."""
        computing = [name for name in stages if name not in OF_STAGE]
        causes = {name: OF_STAGE[name] for name in stages if name in OF_STAGE}
        if computing:
            largest = max(computing, key=stages.__getitem__)
            kernels = Kernels(self.table, group.rows, group.steps)
            excess_ms = sum(stages[name] for name in computing)
            ratio = self._ratio(largest, group, stages[largest])
            cause = (
                ""
                if self.table.sketches[group.rows[0]].device
                else other_processes(self.table.sketches, group.rows, ratio)
            )
            cause = cause or kernels.cause(excess_ms, ratio, self.table.received)
            causes |= dict.fromkeys(computing, cause)
        return causes

    def _ratio(self, stage: str, group: SlowGroup, excess_ms: float) -> float:
        of_others = float(np.median(self.usual[stage][group.steps.when]))
        return excess_ms / of_others if of_others else float("inf")

    def _also(self, group: SlowGroup, stages: dict[str, float], causes: dict[str, str]) -> str:
        """The other stages, those of other causes with these."""
        first, *others = stages
        known = {causes[first]} if not machine_or(causes) else set(causes.values())
        parts: dict[str, list[str]] = {}
        for name in others[:_ALSO]:
            much = longer(self._ratio(name, group, stages[name]), stages[name])
            why = "" if causes[name] in known else f" ({causes[name]})"
            known.add(causes[name])
            parts.setdefault(f"{much}{why}", []).append(stage_in_words(name))
        return ", ".join(f"{' and '.join(names)} {much}" for much, names in parts.items())

    def in_turn(self, stage: str, slow: Mask) -> Found:
        """Ranks that are slow now and then, each in other steps."""
        table, excess = self.table, self.excess[stage]
        rows = np.flatnonzero(slow.any(axis=1)).tolist()
        steps = np.flatnonzero(slow.any(axis=0)).tolist()
        excess_ms = float(np.median(excess[slow]))
        of_others = float(np.median(self.usual[stage]))
        straggler = Straggler(
            ranks=tuple(sorted(table.sketches[row].rank for row in rows)),
            node="",
            stage=stage,
            steps=(table.steps[steps[0]], table.steps[steps[-1]]),
            excess_ms=excess_ms,
            excess=excess_ms / of_others if of_others else float("inf"),
            cause=_IN_TURN.get(stage, "longer now and then, at other times on each rank"),
            stages={stage: excess_ms},
            count=int(np.median(slow[rows].sum(axis=1))),
            in_turn=True,
        )
        return Found(straggler, rows, np.where(slow[rows], excess[rows] + self._rest[rows], 0))
