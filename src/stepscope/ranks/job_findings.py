"""What a report on one rank says of the whole job: the slow ranks, and where to look first."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.ranks.job import JobReport


@dataclass(frozen=True)
class JobFinding:
    """Slow ranks or a slow link in one sentence; times in ms per step."""

    sentence: str
    ranks: tuple[int, ...]
    stage: str
    cost_ms: float


@dataclass(frozen=True)
class JobFindings:
    """What the sketches of a job's ranks show.

    Attributes:
        ranks: how many are compared.
        step_ms: the length of a step.
        slowest_rank: the rank to look at first, see `slowest_rank`.
        findings: by cost, the most expensive first.
    """

    ranks: int
    step_ms: float
    slowest_rank: int
    findings: tuple[JobFinding, ...]

    @classmethod
    def of(cls, report: JobReport) -> JobFindings:
        """The findings of a job."""
        findings = tuple(
            JobFinding(one.sentence, one.ranks, one.stage, one.cost_ms) for one in report.stragglers
        )
        return cls(report.ranks, report.step_ms, slowest_rank(report), findings)


def slowest_rank(report: JobReport) -> int:
    """The first straggler; without one the rank that works longest."""
    slow = report.slow_ranks
    if slow:
        return slow[0].ranks[0]
    longest = max(report.rows, key=lambda row: sum(row["work_ms"].values()))
    return int(longest["rank"])
