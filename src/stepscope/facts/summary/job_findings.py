"""The one answer about a job: which ranks are slow, why, at what cost, and where to look first."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import msgspec

from stepscope.base.numbers import ms, plural

if TYPE_CHECKING:
    from rich.console import Console

NONE_IS_SLOW = "No rank is slower than the others beyond noise"
_MOST = 3  # findings above a report; `stepscope ranks` has all


class JobFinding(msgspec.Struct, frozen=True):
    """Ranks that are slow together, or a slow link."""

    sentence: str  # who, where, since when, how much, and why
    ranks: tuple[int, ...]  # numbers of the ranks
    stage: str  # in which stage; `communication` for a slow link
    cost_ms: float  # what the job would gain per step
    cost: str  # the same in words, such as `costs the job 5.00 ms per step, 10% of the step`


class JobFindings(msgspec.Struct, frozen=True):
    """What the sketches of a job's ranks show."""

    ranks: int  # how many are compared
    step_ms: float  # the length of a step
    slowest_rank: int  # the rank to look at first: of the slow ones, or of all, the one waited for
    findings: tuple[JobFinding, ...]  # by cost, the most expensive first
    sentences: tuple[str, ...]  # one for each finding, with what it costs, or that there is none

    @property
    def verdict(self) -> str:
        """The culprit first: who, where, why, and at what cost."""
        return self.sentences[0]

    @property
    def headline(self) -> str:
        """The verdict, then how many ranks were compared and how long a step takes."""
        return f"{self.verdict} {plural(self.ranks, 'rank')} compared, {ms(self.step_ms)} ms per step."


def print_findings(console: Console, job: JobFindings, folder: str) -> None:
    """Print which ranks of a job are slow, above the report on one of them."""
    from rich.text import Text

    style = "bold yellow" if job.findings else "bold"
    for sentence in (job.headline, *job.sentences[1:_MOST]):
        console.print(Text(sentence, style), soft_wrap=True)
    advice = f"All ranks, their communication and the page: stepscope ranks {shlex.quote(folder)}"
    console.print(Text(f"{advice}\n", "dim"), soft_wrap=True)
