"""Process groups whose transfers take longer than those of others like them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np

from stepscope.arrays import Floats
from stepscope.ranks.collectives import Matched, bus_bandwidth
from stepscope.ranks.excess_work import ExcessWork
from stepscope.ranks.job_table import JobTable
from stepscope.ranks.sketch import Sketch
from stepscope.ranks.slow_steps import SlowSteps, beyond_chance, slow_steps
from stepscope.ranks.stragglers import Straggler
from stepscope.ranks.usual_work import faster_half

_LEAST_GROUPS = 3  # with fewer, the median is no reference
_LEAST_RATIO = 1.3
_FASTER = 90  # percentile
_THROUGH = 1.2  # of the slow link's bandwidth: a group that is no faster passes through it
_LEAST_THROUGH = 0.01  # of the step
_MOST_NAMED = 2


@dataclass(frozen=True)
class GroupTransfers:
    """What one process group transfers in each step by one kind of collective.

    Attributes:
        kind: of the collective.
        group: name of the process group, or the pair of a `send`.
        ranks: positions of its members among the sketches.
        nodes: the machines of its members.
        transfer_ms: per step, shape (steps,).
        rate: bus bandwidth of the median call, GB/s, nan if unknown.
        fastest: the same of its faster calls: small ones take time that no link explains.
        likeness: groups of equal likeness transfer as much among as many ranks and machines.
    """

    kind: str
    group: str
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    transfer_ms: Floats
    rate: float
    fastest: float
    likeness: tuple[object, ...]


class _SlowGroup(NamedTuple):
    """A group that is slow in some steps, and what others like it take, ms, and reach, GB/s."""

    group: GroupTransfers
    steps: SlowSteps
    usual: Floats
    usual_rate: float


def find_slow_links(table: JobTable, matched: Matched) -> list[Straggler]:
    """Groups whose transfers, without waiting for the last rank, take longer than the median.

    Args:
        table: the ranks.
        matched: their calls.
    """
    groups = group_transfers(table.sketches, matched, len(table.steps))
    found: dict[tuple[tuple[str, ...], str], list[_SlowGroup]] = {}
    for _, alike in groupby(sorted(groups, key=_likeness), key=_likeness):
        members = list(alike)
        if len(members) < _LEAST_GROUPS:
            continue
        values = np.array([one.transfer_ms for one in members])
        others = faster_half(values, table.step_ms)
        work = ExcessWork.of(values, others, table.step_ms)
        usual = values[0] - work.excess[0]
        slow = work.slow & (values > _LEAST_RATIO * usual)
        usual_rate = float(np.median([
            one.rate for one, other in zip(members, others, strict=True) if other.mean() > 0.5
        ] or [one.rate for one in members]))  # fmt: skip
        certain = beyond_chance(slow)
        for row, group in enumerate(members):
            steps = slow_steps(slow[row], least=1)
            if steps is not None and certain[row]:
                one = _SlowGroup(group, steps, usual, usual_rate)
                found.setdefault((group.nodes, group.kind), []).append(one)
    return [_finding(table, slow, groups) for slow in found.values()]


def group_transfers(
    sketches: Sequence[Sketch], matched: Matched, steps: int
) -> list[GroupTransfers]:
    """The transfers of each process group by kind; of groups that are whole in the sketches."""
    if not matched.count:
        return []
    row = matched.first
    step, key = matched.columns.step[row], matched.key[row]
    transfer = matched.transfer_ns / 1e6
    rate = bus_bandwidth(matched, np.arange(matched.count))
    members = matched.members
    found = []
    order = np.argsort(key, kind="stable")
    for mine in np.split(order, np.flatnonzero(np.diff(key[order])) + 1):
        number = int(key[mine[0]])
        ranks = tuple(members[number])
        nodes = tuple(sorted({sketches[rank].node for rank in ranks}))
        calls = len(mine) / max(len(np.unique(step[mine])), 1)
        one = matched.keys[number]
        found.append(GroupTransfers(
            one.kind, one.name, ranks, nodes,
            np.bincount(step[mine], transfer[mine], steps).astype(np.float64),
            float(np.median(rate[mine])), float(np.percentile(rate[mine], _FASTER)),
            (one.kind, len(ranks), len(nodes), round(calls), int(np.median(matched.bytes[mine]))),
        ))  # fmt: skip
    return found


def _likeness(group: GroupTransfers) -> str:
    return str(group.likeness)


def _finding(
    table: JobTable, slow: list[_SlowGroup], groups: Sequence[GroupTransfers]
) -> Straggler:
    """One finding for the slow groups of the same machines."""
    when = np.any([one.steps.when for one in slow], axis=0)
    together = SlowSteps(when, all(one.steps.recurs for one in slow))
    taken = np.median([one.group.transfer_ms[when] for one in slow])
    usual = np.median([one.usual[when] for one in slow])
    ranks = sorted({table.sketches[rank].rank for one in slow for rank in one.group.ranks})
    nodes = [node for node in slow[0].group.nodes if node]
    excess = float(taken - usual)
    wider = _through(slow, groups, table.step_ms)
    return Straggler(
        ranks=tuple(ranks),
        node=nodes[0] if len(nodes) == 1 else "",
        stage="communication",
        steps=together.span(table.steps),
        excess_ms=excess,
        excess=excess / float(usual) if usual else float("inf"),
        cause=_cause(slow, nodes, wider),
        groups=tuple(sorted({one.group.group for one in slow})),
        through=wider,
        stages={"communication": excess},
        count=together.number if together.recurs else 0,
        period=together.period,
    )


def _through(
    slow: list[_SlowGroup], groups: Sequence[GroupTransfers], step_ms: float
) -> tuple[str, ...]:
    """Larger groups that are no faster than the slow link: a ring is as fast as its slowest link.

    Those that hardly take time are left out: latency may be all of it.
    """
    rate = _THROUGH * float(np.median([one.group.rate for one in slow]))
    found = {
        f"{one.kind} of {one.group}"
        for one in groups
        if one.fastest <= rate
        and float(np.median(one.transfer_ms)) >= _LEAST_THROUGH * step_ms
        and any(set(one.ranks) > set(other.group.ranks) for other in slow)
    }
    return tuple(sorted(found))


def _cause(slow: list[_SlowGroup], nodes: list[str], wider: Sequence[str]) -> str:
    kind, rate = slow[0].group.kind, np.median([one.group.rate for one in slow])
    where = f" between {' and '.join(nodes)}" if len(nodes) > 1 else ""
    if len(slow) == 1 and "->" in slow[0].group.group:
        where += " from rank {} to rank {}".format(*slow[0].group.group.split("->"))
    usual = f"other groups at {slow[0].usual_rate:.3g}"
    speed = "" if np.isnan(rate) else f" ({kind} at {rate:.3g} GB/s, {usual})"
    through = f", which slows {' and '.join(wider[:_MOST_NAMED])}, too" if wider else ""
    return f"slower link{where}{speed}{through}"
