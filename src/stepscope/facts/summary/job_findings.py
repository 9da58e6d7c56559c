"""What a report on one rank says of the whole job: the slow ranks, and where to look first."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import msgspec

from stepscope.facts.summary.numbers import ms, plural

if TYPE_CHECKING:
    from rich.console import Console

NONE_IS_SLOW = "no rank is slower than the others beyond noise."
_MOST = 3  # findings above a report; `stepscope ranks` has all


class JobFinding(msgspec.Struct, frozen=True):
    """Slow ranks or a slow link in one sentence; times in ms per step."""

    sentence: str
    ranks: tuple[int, ...]
    stage: str
    cost_ms: float


class JobFindings(msgspec.Struct, frozen=True):
    """What the sketches of a job's ranks show.

    Attributes:
        ranks: how many are compared.
        step_ms: the length of a step.
        slowest_rank: the rank to look at first.
        findings: by cost, the most expensive first.
    """

    ranks: int
    step_ms: float
    slowest_rank: int
    findings: tuple[JobFinding, ...]


def print_findings(console: Console, job: JobFindings, folder: str) -> None:
    """Print which ranks of a job are slow, above the report on one of them."""
    from rich.text import Text

    head = f"{plural(job.ranks, 'rank')} compared: "
    if not job.findings:
        console.print(Text(f"{head}{NONE_IS_SLOW}", "bold"), soft_wrap=True)
    for finding in job.findings[:_MOST]:
        cost = f" It costs the job {ms(finding.cost_ms)} ms per step."
        console.print(Text(f"{head}{finding.sentence}{cost}", "bold yellow"), soft_wrap=True)
        head = ""
    advice = f"All ranks, their communication and the page: stepscope ranks {shlex.quote(folder)}"
    console.print(Text(f"{advice}\n", "dim"), soft_wrap=True)
