"""Compares what `stepscope ranks` finds with what was planted."""

from __future__ import annotations

from dataclasses import dataclass

from generated_jobs.faults import Fault
from stepscope.ranks.stragglers import Straggler


@dataclass(frozen=True)
class Score:
    """How one job was judged.

    Attributes:
        planted: whether a fault was planted.
        found: whether the first finding names the right ranks, stage and steps.
        cause: whether its cause is the right one, too.
        wrong: findings that name other ranks.
    """

    planted: bool
    found: bool
    cause: bool
    wrong: int


def score(fault: Fault, findings: tuple[Straggler, ...]) -> Score:
    """Judge the findings of a job."""
    wrong = sum(one.ranks != fault.ranks for one in findings)
    if not findings or fault.kind == "healthy":
        return Score(fault.kind != "healthy", False, False, wrong)
    first = findings[0]
    right = (first.ranks, first.steps) == (fault.ranks, fault.steps)
    right &= not fault.stages or first.stage in fault.stages
    return Score(True, right, right and fault.cause in first.cause, wrong)
