"""Reports of files that were reported before: shown again without opening the trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stepscope.cli.kept_answer import AnswerKind, answer_of
from stepscope.cli.options import TraceFile, ranks_without_steps
from stepscope.summary.facts import Summary
from stepscope.summary.job_findings import JobFindings

if TYPE_CHECKING:
    from stepscope.trace.trace import Trace


@dataclass(frozen=True)
class KeptReport:
    """The facts of a report.

    Attributes:
        summaries: by rank.
        ranks_without_steps: those that have no recorded step.
        job: the ranks compared; None for a single one.
    """

    summaries: list[Summary]
    ranks_without_steps: list[int]
    job: JobFindings | None = None


def report_of(file: TraceFile, rank: int | None, step: int | None) -> KeptReport:
    """The report of a file, from the cache if it was made before.

    Args:
        file: the file and how to open it.
        rank: one rank; by default all that have steps.
        step: one step; by default the mean over all.

    Raises:
        StepscopeError: if the file cannot be read, or has no such rank or step.
    """
    return answer_of(_KIND, file, (rank, step), lambda trace: _made(trace, rank, step))


def _made(trace: Trace, rank: int | None, step: int | None) -> KeptReport:
    from stepscope.annotate.steps.steps import ranks_with_steps
    from stepscope.summary.report_facts import summarize

    ranks = ranks_with_steps(trace) if rank is None else (rank,)
    summaries = [summarize(trace, one, step) for one in ranks]
    return KeptReport(summaries, ranks_without_steps(trace), _compared(trace, ranks))


def _compared(trace: Trace, ranks: Sequence[int]) -> JobFindings | None:
    """The ranks of a joined trace compared, as those of a folder of many are."""
    if len(ranks) < 2:
        return None
    from stepscope.ranks import job_report, sketch_of
    from stepscope.ranks.job_findings import findings_of
    from stepscope.ranks.job_table import short_ranks
    from stepscope.trace.one_rank import one_rank

    sketches = [sketch_of(one_rank(trace, rank)) for rank in ranks]
    short = short_ranks(sketches)
    return findings_of(job_report([one for one in sketches if one.rank not in short]))


def _named(report: KeptReport, source: str) -> KeptReport:
    from msgspec import structs

    summaries = [structs.replace(one, source=source) for one in report.summaries]
    return replace(report, summaries=summaries)


_KIND = AnswerKind("report", KeptReport, ("ranks", "roofline", "summary"), _named)
