"""All what-ifs of files that were tried before: listed again without opening the trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.cli.kept_answer import AnswerKind, answer_of, calibrations
from stepscope.cli.options import TraceFile, ranks_without_steps
from stepscope.whatif.ranking import Ranking, graph_of, rank_changes

if TYPE_CHECKING:
    from stepscope.trace.trace import Trace


@dataclass(frozen=True)
class FileWhatifs:
    """Every change tried on the steps of a file, and the ranks that have no recorded step."""

    ranking: Ranking
    ranks_without_steps: list[int]


def ranking_of_file(file: TraceFile, step: int | None, rank: int | None) -> FileWhatifs:
    """Every change tried on the steps of a file, from the cache if that was done before.

    Args:
        file: the file and how to open it.
        step: one step; by default the longest run of consecutive steps.
        rank: of the process; by default all ranks together.

    Raises:
        StepscopeError: if the file cannot be read, or has no such step or rank.
    """
    asked = (step, rank, calibrations())
    return answer_of(_KIND, file, asked, lambda trace: _made(trace, step, rank))


def _made(trace: Trace, step: int | None, rank: int | None) -> FileWhatifs:
    ranking = rank_changes(graph_of(trace, step, rank))
    return FileWhatifs(ranking, ranks_without_steps(trace))


_KIND = AnswerKind(
    "what-ifs", FileWhatifs, ("calibration", "graph", "memory", "roofline", "whatif")
)
