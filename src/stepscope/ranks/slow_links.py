"""Process groups whose transfers take longer than those of others like them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from stepscope.arrays import Floats
from stepscope.ranks.collectives import Matched, bus_bandwidth
from stepscope.ranks.job_table import JobTable
from stepscope.ranks.slow_groups import Excess, SlowSteps, is_no_chance, slow_steps
from stepscope.ranks.stragglers import Straggler

# Thresholds of links; [jobs]: see `slow_groups`.
_LEAST_GROUPS = 3  # with fewer, the median is no reference
_LEAST_RATIO = 1.3  # of the usual transfer: links vary more than work; docs/howto/slow_rank.md
_FASTER = 90  # percentile of a group's calls: small ones take time that no link explains; [jobs]
_THROUGH = 1.2  # of the slow link's bandwidth: a group that is no faster passes through it; [jobs]
_LEAST_THROUGH = 0.01  # of the step: a transfer of less may be latency alone; [jobs]
_MOST_NAMED = 2  # groups in a sentence


class _Transfers(NamedTuple):
    """What one process group transfers in each step by one kind of collective.

    Attributes:
        kind: of the collective.
        group: name of the process group, or the pair of a `send`.
        ranks: positions of its members among the sketches.
        nodes: the machines of its members.
        ms: per step, shape (steps,).
        rate: bus bandwidth of the median call, GB/s, nan if unknown.
        fastest: the same of its faster calls.
        likeness: groups of equal likeness transfer as much among as many ranks and machines.
    """

    kind: str
    group: str
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    ms: Floats
    rate: float
    fastest: float
    likeness: str


class _SlowLink(NamedTuple):
    """A group that is slow in some steps, and what others like it take, ms, and reach, GB/s."""

    group: _Transfers
    steps: SlowSteps
    usual: Floats
    usual_rate: float


def find_slow_links(table: JobTable, matched: Matched) -> list[Straggler]:
    """Groups whose transfers, without waiting for the last rank, take longer than the median.

    Args:
        table: the ranks.
        matched: their calls.
    """
    groups = sorted(_transfers(table, matched), key=lambda one: one.likeness)
    links: dict[tuple[tuple[str, ...], str], list[_SlowLink]] = {}
    for _, alike in groupby(groups, key=lambda one: one.likeness):
        for link in _slow_of(list(alike), table.step_ms):
            links.setdefault((link.group.nodes, link.group.kind), []).append(link)
    return [_finding(table, slow, groups) for slow in links.values()]


def _slow_of(members: Sequence[_Transfers], step_ms: float) -> list[_SlowLink]:
    """The slow ones of groups that are alike."""
    if len(members) < _LEAST_GROUPS:
        return []
    values = np.array([one.ms for one in members])
    work = Excess.of(values, step_ms)
    usual = values[0] - work.ms[0]
    slow = work.slow & (values > _LEAST_RATIO * usual)
    healthy = work.peers.mean(axis=1) > 0.5
    rates = np.array([one.rate for one in members])
    usual_rate = float(np.median(rates[healthy] if healthy.any() else rates))
    return [
        _SlowLink(one, steps, usual, usual_rate)
        for row, one in enumerate(members)
        if (steps := slow_steps(slow[row])) is not None
        and is_no_chance(slow, [row], steps, len(slow))
    ]


def _transfers(table: JobTable, matched: Matched) -> list[_Transfers]:
    """The transfers of each process group by kind; of groups that are whole in the sketches."""
    if not matched.count:
        return []
    call = matched.first
    step, key = matched.columns.step[call], matched.key[call]
    transfer = matched.transfer_ns / 1e6
    rate = bus_bandwidth(matched, np.arange(matched.count))
    groups = []
    order = np.argsort(key, kind="stable")
    for mine in np.split(order, np.flatnonzero(np.diff(key[order])) + 1):
        number = int(key[mine[0]])
        kind, ranks = matched.keys[number].kind, tuple(matched.members[number])
        nodes = tuple(sorted({table.sketches[row].node for row in ranks}))
        calls = round(len(mine) / max(len(np.unique(step[mine])), 1))
        alike = (kind, len(ranks), len(nodes), calls, int(np.median(matched.bytes[mine])))
        groups.append(_Transfers(
            kind, matched.keys[number].name, ranks, nodes,
            np.bincount(step[mine], transfer[mine], len(table.steps)).astype(np.float64),
            float(np.median(rate[mine])), float(np.percentile(rate[mine], _FASTER)), str(alike),
        ))  # fmt: skip
    return groups


def _finding(table: JobTable, slow: list[_SlowLink], groups: Sequence[_Transfers]) -> Straggler:
    """One finding for the slow groups of the same machines."""
    when = np.any([one.steps.when for one in slow], axis=0)
    together = SlowSteps(when, all(one.steps.recurs for one in slow))
    taken = np.median([one.group.ms[when] for one in slow])
    usual = float(np.median([one.usual[when] for one in slow]))
    excess = float(taken - usual)
    nodes = [node for node in slow[0].group.nodes if node]
    wider = _through(slow, groups, table.step_ms)
    return Straggler(
        ranks=tuple(sorted({table.sketches[row].rank for one in slow for row in one.group.ranks})),
        node=nodes[0] if len(nodes) == 1 else "",
        stage="communication",
        steps=together.span(table.steps),
        excess_ms=excess,
        excess=excess / usual if usual else float("inf"),
        cause=_cause(slow, nodes, wider),
        groups=tuple(sorted({one.group.group for one in slow})),
        through=wider,
        stages={"communication": excess},
        count=together.number if together.recurs else 0,
        period=together.period,
    )


def _through(
    slow: list[_SlowLink], groups: Sequence[_Transfers], step_ms: float
) -> tuple[str, ...]:
    """Larger groups that are no faster than the slow link: a ring is as fast as its slowest link.

    Those that hardly take time are left out: latency may be all of it.
    """
    rate = _THROUGH * float(np.median([one.group.rate for one in slow]))
    wider = {
        f"{one.kind} of {one.group}"
        for one in groups
        if one.fastest <= rate
        and float(np.median(one.ms)) >= _LEAST_THROUGH * step_ms
        and any(set(one.ranks) > set(link.group.ranks) for link in slow)
    }
    return tuple(sorted(wider))


def _cause(slow: list[_SlowLink], nodes: list[str], wider: Sequence[str]) -> str:
    group, rate = slow[0].group, np.median([one.group.rate for one in slow])
    where = f" between {' and '.join(nodes)}" if len(nodes) > 1 else ""
    if len(slow) == 1 and "->" in group.group:
        where += " from rank {} to rank {}".format(*group.group.split("->"))
    usual = f"other groups at {slow[0].usual_rate:.3g}"
    speed = "" if np.isnan(rate) else f" ({group.kind} at {rate:.3g} GB/s, {usual})"
    through = f", which slows {' and '.join(wider[:_MOST_NAMED])}, too" if wider else ""
    return f"slower link{where}{speed}{through}"
