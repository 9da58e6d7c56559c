"""A folder of many ranks: compared by their sketches, and opened one at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from stepscope.errors import IngestError
from stepscope.ingest.rank_folder import named_rank, trace_files
from stepscope.ranks.job import Job, JobReport, report_of
from stepscope.ranks.job_findings import findings_of
from stepscope.ranks.map_ranks import RankResult, sketch_files
from stepscope.summary.job_findings import JobFindings

MOST_JOINED = 16  # ranks of a folder that are joined into one trace


def files_of_many(path: Path) -> list[Path]:
    """The files of a folder with more than 16 ranks; of any other path none."""
    if not path.is_dir():
        return []
    try:
        files, _ = trace_files(path)
    except IngestError:
        return []  # opening it says why
    return files if len(files) > MOST_JOINED else []


@dataclass(frozen=True)
class ManyRanks:
    """The ranks of a folder, by their sketches.

    Attributes:
        results: what became of each file; at least one could be read.
    """

    results: Sequence[RankResult]

    @cached_property
    def job(self) -> Job:
        """The ranks side by side."""
        return Job.of([one.sketch for one in self.results if one.sketch])

    @cached_property
    def report(self) -> JobReport:
        """What they say together."""
        return report_of(self.job)

    @cached_property
    def findings(self) -> JobFindings:
        """Which ranks are slow, and which to look at first."""
        return findings_of(self.report)

    def file(self, rank: int) -> Path:
        """The file of a rank.

        Raises:
            IngestError: if there is none.
        """
        for one in self.results:
            if one.sketch and one.sketch.rank == rank:
                return Path(one.file)
        raise IngestError(f"no rank {rank}; there are {_ranks_in_words(self.results)}")


def sketched(files: Sequence[Path], finished: Callable[[str], None], cache: bool) -> ManyRanks:
    """Sketch the files of a folder, or take the sketches from the cache.

    Args:
        files: one for each rank.
        finished: called with each file when it is done.
        cache: whether to use and update the cache.

    Raises:
        IngestError: if none can be read.
    """
    results = sketch_files(files, finished=finished, cache=cache)
    if not any(one.sketch for one in results):
        raise IngestError(f"{files[0].parent}: no rank can be read: {results[0].error}")
    return ManyRanks(results)


def file_named(files: Sequence[Path], rank: int | None) -> Path | None:
    """The file whose name says a rank, by default the lowest; None if names do not say which.

    Raises:
        IngestError: if no name says this rank.
    """
    named = {named_rank(path): path for path in files}
    if None in named or len(named) < len(files):
        return files[0] if rank is None else None
    if rank is None:
        return min(named.items(), key=lambda one: one[0] or 0)[1]
    if rank not in named:
        raise IngestError(f"no file of rank {rank} among {len(files)} files")
    return named[rank]


def _ranks_in_words(results: Sequence[RankResult]) -> str:
    ranks = sorted(one.sketch.rank for one in results if one.sketch)
    return f"{len(ranks)} ranks from {ranks[0]} to {ranks[-1]}"
