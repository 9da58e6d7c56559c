"""Reports of files that were reported before: shown again without opening the trace."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stepscope.cli.kept_answer import AnswerKind, answer_of
from stepscope.cli.options import TraceFile, ranks_without_steps
from stepscope.summary.facts import Summary

if TYPE_CHECKING:
    from stepscope.trace.trace import Trace


@dataclass(frozen=True)
class KeptReport:
    """The facts of a report, by rank, and the ranks that have no recorded step."""

    summaries: list[Summary]
    ranks_without_steps: list[int]


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
    return KeptReport([summarize(trace, one, step) for one in ranks], ranks_without_steps(trace))


def _named(report: KeptReport, source: str) -> KeptReport:
    return replace(report, summaries=[replace(one, source=source) for one in report.summaries])


_KIND = AnswerKind("report", KeptReport, ("roofline", "summary"), _named)
