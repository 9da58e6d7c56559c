"""Analyses of files that were analyzed before: shown again without opening the trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from stepscope.analyze.analysis import Analysis
from stepscope.cli.kept_answer import AnswerKind, answer_of, calibrations
from stepscope.cli.options import TraceFile, ranks_without_steps

if TYPE_CHECKING:
    from stepscope.trace.trace import Trace


class FileAnalysis(msgspec.Struct, frozen=True):
    """The analysis of one rank, and the ranks that have no recorded step."""

    analysis: Analysis
    ranks_without_steps: list[int]


def analysis_of_file(file: TraceFile, rank: int | None) -> FileAnalysis:
    """The analysis of a file by the rules of stepscope, from the cache if it was made before.

    Args:
        file: the file and how to open it.
        rank: of the process; by default the one that computes longest.

    Raises:
        StepscopeError: if the file cannot be read, or has no such rank.
    """
    return answer_of(_KIND, file, (rank, calibrations()), lambda trace: _made(trace, rank))


def _made(trace: Trace, rank: int | None) -> FileAnalysis:
    from stepscope.analyze import RULES, RuleContext
    from stepscope.analyze.analysis import analysis_of

    return FileAnalysis(analysis_of(RuleContext(trace, rank), RULES), ranks_without_steps(trace))


def _named(found: FileAnalysis, source: str) -> FileAnalysis:
    heading = replace(found.analysis.heading, source=source)
    return replace(found, analysis=replace(found.analysis, heading=heading))


_KIND = AnswerKind(
    "analysis",
    FileAnalysis,
    ("analyze", "calibration", "contexts", "graph", "memory", "roofline", "summary", "whatif"),
    _named,
)
