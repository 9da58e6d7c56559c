"""The slow ranks of a job as a report shows them."""

from __future__ import annotations

from stepscope.ranks.job import JobReport
from stepscope.summary.job_findings import JobFinding, JobFindings


def findings_of(report: JobReport) -> JobFindings:
    """The findings of a job, and the rank to look at first."""
    findings = tuple(
        JobFinding(one.sentence, one.ranks, one.stage, one.cost_ms) for one in report.stragglers
    )
    return JobFindings(report.ranks, report.step_ms, _slowest_rank(report), findings)


def _slowest_rank(report: JobReport) -> int:
    """The first straggler; without one the rank that works longest."""
    slow = report.slow_ranks
    if slow:
        return slow[0].ranks[0]
    longest = max(report.rows, key=lambda row: sum(row["work_ms"].values()))
    return int(longest["rank"])
