"""Compares what `stepscope ranks` finds with what was planted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from generated_jobs.faults import Fault
from stepscope.models.ranks.stragglers import Straggler

_MOST = 0.9


@dataclass(frozen=True)
class Score:
    """How one job was judged.

    Attributes:
        planted: whether a fault was planted that is to be found.
        found: whether the first findings name the right ranks, stage and steps of every fault.
        cause: whether their causes are the right ones, too.
        wrong: findings that name other ranks.
    """

    planted: bool
    found: bool
    cause: bool
    wrong: int


def score(faults: Sequence[Fault], findings: Sequence[Straggler], steps: int) -> Score:
    """Judge the findings of a job of so many steps.

    A fault of several machines may be one finding for each.
    """
    planted = [one for one in faults if one.is_finding]
    wrong = sum(not any(set(one.ranks) <= set(fault.ranks) for fault in planted) for one in findings)
    named = [_named(fault, findings, steps) for fault in planted]
    found = bool(planted) and all(named)
    first = {id(one) for ones in named for one in ones}
    found = found and {id(one) for one in findings[: len(first)]} == first
    cause = found and all(
        fault.cause.lower() in one.sentence.lower()
        for fault, ones in zip(planted, named, strict=True)
        for one in ones
    )
    return Score(bool(planted), found, cause, wrong)


def _named(fault: Fault, findings: Sequence[Straggler], steps: int) -> list[Straggler]:
    """The findings that name a fault: with all its ranks and no others, its stage and steps."""
    mine = [
        one
        for one in findings
        if _same_ranks(fault, one)
        and (not fault.stages or one.stage in fault.stages)
        and _same_steps(fault, one, steps)
    ]
    ranks = {rank for one in mine for rank in one.ranks}
    return mine if len(ranks) >= _MOST * len(fault.ranks) else []


def _same_ranks(fault: Fault, one: Straggler) -> bool:
    """Exactly the same; or some of several machines, or nearly all that pause now and then."""
    if fault.is_of_nodes or (len(fault.ranks) > 1 and fault.each and not fault.together):
        return set(one.ranks) <= set(fault.ranks)
    return one.ranks == fault.ranks


def _same_steps(fault: Fault, one: Straggler, steps: int) -> bool:
    if fault.steps is None or one.steps is None:
        return fault.steps is one.steps
    first, last = fault.span(steps)
    return (
        abs(one.steps[0] - first) <= fault.loose
        and abs(one.steps[1] - last) <= fault.loose
        and one.period == fault.period
    )
