"""What the sketches of a job say together: which ranks are slow, since when, why, and the cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stepscope.base.numbers import ms, percent
from stepscope.errors import IngestError
from stepscope.facts.annotate.steps.step_table import ranks_with_steps
from stepscope.facts.summary.job_findings import NONE_IS_SLOW, JobFinding, JobFindings
from stepscope.models.ranks.collectives import Matched, match_calls
from stepscope.models.ranks.files import RankFile
from stepscope.models.ranks.map_ranks import RankResult, sketch_files, without_short
from stepscope.models.ranks.pipeline import Pipeline, pipeline_of, slow_of_pipelines, with_peers
from stepscope.models.ranks.process_groups import (
    GroupRow,
    Shape,
    find_slow_links,
    group_rows,
    groups_by_shape,
    pipeline_places,
)
from stepscope.models.ranks.replay import Replay, build_replay
from stepscope.models.ranks.replay_whatifs import (
    Slowdown,
    slowdown,
    steps_alike,
    together_ms,
    whatifs,
    with_costs,
)
from stepscope.models.ranks.sketch import JobTable, Sketch, job_table, sketch_of
from stepscope.models.ranks.stragglers import Straggler, find_stragglers
from stepscope.read.rank_folder import named_rank, trace_files
from stepscope.trace.concat import one_rank
from stepscope.trace.trace import Trace

MOST_JOINED = 16  # ranks of a folder that are joined into one trace
_LONGER = 1.05  # times as long as the usual step: then it is said
_NOTABLE = 0.05  # of the step: a rank that waits by so much less than the others is waited for


class RankRow(msgspec.Struct, frozen=True):
    """One rank of a job; times in ms, medians over steps."""

    rank: int
    node: str  # its machine, empty where unknown
    device: str  # its device, empty without one
    work_ms: dict[str, float]
    waiting_ms: float
    peak_memory_bytes: int | None  # of its device, None if unknown
    core_share: float | None = None  # what its training thread got of a core while it could run

    @property
    def own_ms(self) -> float:
        """Own work in all stages."""
        return sum(self.work_ms.values())


class JobReport(msgspec.Struct, frozen=True):
    """A job in numbers; times in ms, medians over steps."""

    ranks: int
    steps: int  # how many steps all of them have
    step_ms: float
    work_ms: float  # the median rank's own work per step
    slowest_ms: float  # the own work per step of the slowest rank of each step, on average
    rows: tuple[RankRow, ...]
    stragglers: tuple[Straggler, ...]
    groups: tuple[GroupRow, ...] = ()
    slowdown: Slowdown | None = None  # what imbalance costs, by what is out of balance; None for one rank
    replayed_ms: float = 0.0  # the step as replayed from the sketches, the mean of the ranks
    together_ms: float = 0.0  # what the job would gain per step without all stragglers at once
    whatifs: dict[str, float] = {}  # of more than 16 ranks the step, ms, after each of two changes
    pipeline: Pipeline | None = None  # how the job is pipelined, None if it is not

    def to_json(self) -> dict[str, Any]:
        """All facts, with a sentence for each straggler and the ratio of the slowdown."""
        facts: dict[str, Any] = msgspec.to_builtins(self)
        for row, one in zip(facts["stragglers"], self.stragglers, strict=True):
            row["sentence"] = one.sentence
        if self.pipeline:
            facts["pipeline"]["sentence"] = self.pipeline.sentence
        if self.slowdown:
            facts["slowdown"]["ratio"] = self.slowdown.ratio
        return facts


@dataclass(frozen=True)
class Job:
    """The ranks of a job side by side, their communication matched, and their replay."""

    table: JobTable
    matched: Matched
    replay: Replay

    @cached_property
    def groups(self) -> dict[Shape, list[int]]:
        """The process groups of each shape, by their keys in `matched`."""
        return groups_by_shape(self.table, self.matched)

    @classmethod
    def of(cls, sketches: Sequence[Sketch]) -> "Job":
        """The job of some sketches, at least one, each with at least one step."""
        sketches = with_peers(sketches)
        table = job_table(sketches)
        matched = match_calls(sketches, table.places)
        return cls(table, matched, build_replay(table, matched))


def job_report(sketches: Sequence[Sketch]) -> JobReport:
    """Compare the ranks of a job, see `report_of`."""
    return report_of(Job.of(sketches))


def report_of(job: Job) -> JobReport:
    """Compare the ranks of a job.

    The own work of each rank is compared with the median rank, stage by stage and step by step.
    Waiting inside collectives does not count as work: the ranks that wait are not the slow ones.
    What a finding costs is found by a replay of the job without it.
    """
    table = job.table
    places = pipeline_places(job.matched, len(table.sketches))
    pipeline_stage, pipeline = places.get("pipeline stage"), pipeline_of(table, job.matched, places)
    if pipeline is None or pipeline_stage is None:
        slow = find_stragglers(table)
    else:
        slow = slow_of_pipelines(table, pipeline_stage, pipeline.micro_batches)
    links = find_slow_links(table, job.matched)
    replay, alike = job.replay, steps_alike(slow, links, table)
    if (replay.weights != 1).any() and alike.any():  # of some steps: of some of each group then
        replay = build_replay(table, job.matched, alike)
    # Stages with one micro-batch work one after the other, whatever each does.
    is_chain = pipeline is not None and pipeline.replicas == pipeline.micro_batches == 1
    own = table.work.sum(axis=1)
    return JobReport(
        ranks=len(table.sketches),
        steps=len(table.steps),
        step_ms=table.step_ms,
        work_ms=float(np.median(np.median(own, axis=1))),
        slowest_ms=float(own.max(axis=0).mean()),
        rows=_rows(table),
        stragglers=with_costs(slow, links, table, replay) if slow or links else (),
        groups=group_rows(table, job.matched, job.groups),
        slowdown=slowdown(table, replay) if len(table.sketches) > 1 and not is_chain else None,
        replayed_ms=replay.step_ms,
        together_ms=together_ms(slow, links, table, replay),
        # Fewer are joined, and `stepscope whatif` predicts from their traces.
        whatifs=whatifs(table, replay) if len(table.sketches) > MOST_JOINED else {},
        pipeline=pipeline,
    )


def _rows(table: JobTable) -> tuple[RankRow, ...]:
    usual = np.median(table.work, axis=2).round(4).tolist()
    return tuple(
        RankRow(
            one.rank,
            one.node,
            one.device,
            dict(zip(table.stages, work_ms, strict=True)),
            round(float(np.median(one.waiting)), 4) if one.waiting else 0.0,
            one.peak_bytes,
            one.core_share,
        )
        for one, work_ms in zip(table.sketches, usual, strict=True)
    )


def report_of_trace(trace: Trace) -> JobReport | None:
    """Compare the ranks of one trace, of which each has enough steps; None for fewer than two."""
    ranks = ranks_with_steps(trace) if len(trace.events) else ()
    return sketched_trace(trace).report if len(ranks) > 1 else None


def findings_of(report: JobReport) -> JobFindings:
    """What every command says about the job first, and the rank that it shows in detail."""
    findings = tuple(
        JobFinding(one.sentence, one.ranks, one.stage, one.cost_ms, cost(one.cost_ms, report))
        for one in report.stragglers
    )
    culprits = report.stragglers[0].ranks if report.stragglers else ()
    rows = [row for row in report.rows if row.rank in culprits] or report.rows
    first = min(rows, key=lambda row: (row.waiting_ms, -row.own_ms))
    sentences = tuple(f"{one.sentence} It {one.cost}." for one in findings)
    return JobFindings(
        report.ranks, report.step_ms, first.rank, findings, sentences or (_no_finding(report, first),)
    )


def cost(cost_ms: float, report: JobReport) -> str:
    """What a finding costs, and if it is not all, what all imbalance does."""
    if not cost_ms:
        return "costs nothing as long as others are slower"
    text = f"costs the job {ms(cost_ms)} ms per step, {_share(cost_ms, report)}"
    lost = report.slowdown
    if lost is None or lost.lost_ms <= cost_ms:
        return text
    return f"{text}; all imbalance {ms(lost.lost_ms)} ms, {percent(lost.lost_ms / lost.replayed_ms)}"


def _share(cost_ms: float, report: JobReport) -> str:
    """The cost as a share of the step that was replayed: a mean, which rare steps make longer."""
    mean_ms = max(report.replayed_ms or report.step_ms, cost_ms, 1e-9)
    is_rare = mean_ms > _LONGER * report.step_ms
    return f"{percent(cost_ms / mean_ms)} of the {f'mean step, {ms(mean_ms)} ms' if is_rare else 'step'}"


def _no_finding(report: JobReport, waited_for: RankRow) -> str:
    if report.ranks == 1:
        return "One rank: there is none to compare it with."
    usual = float(np.median([row.waiting_ms for row in report.rows]))
    if usual - waited_for.waiting_ms < _NOTABLE * report.step_ms:
        return f"{NONE_IS_SLOW}."
    return (
        f"{NONE_IS_SLOW}. Rank {waited_for.rank} waits least, {ms(waited_for.waiting_ms)} ms per step; "
        f"the median rank waits {ms(usual)} ms."
    )


@dataclass(frozen=True)
class ManyRanks:
    """The ranks of a folder of many, by their sketches; their traces are opened one at a time."""

    results: Sequence[RankResult]  # what became of each file; at least one could be read

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
        """The file of a rank; raises IngestError if there is none."""
        files = {one.sketch.rank: one.file for one in self.results if one.sketch}
        if rank not in files:
            raise IngestError(
                f"no rank {rank}; there are {len(files)} ranks from {min(files)} to {max(files)}"
            )
        return Path(files[rank])


def files_of_many(path: Path) -> list[Path]:
    """The files of a folder with more than 16 ranks; of any other path none."""
    if not path.is_dir():
        return []
    try:
        files, _ = trace_files(path)
    except IngestError:
        return []  # opening it says why
    return files if len(files) > MOST_JOINED else []


def sketched(source: object, files: Sequence[Path | RankFile], **how: Any) -> ManyRanks:
    """Sketch the files of a source; `how` is that of `sketch_files`; raises IngestError if none can be
    read."""
    results = sketch_files(files, **how)
    if not any(one.sketch for one in results):
        raise IngestError(f"{source}: no rank can be read: {results[0].error}")
    return ManyRanks(results)


def sketched_trace(trace: Trace) -> ManyRanks:
    """Sketch the ranks of one trace, those without enough steps left out; raises IngestError if it has no
    step."""
    source, ranks = trace.metadata.source, ranks_with_steps(trace) if len(trace.events) else ()
    if not ranks:
        raise IngestError(f"{source}: holds no recorded step")
    return ManyRanks(without_short([RankResult(source, sketch_of(one_rank(trace, rank))) for rank in ranks]))


def file_named(files: Sequence[Path], rank: int | None) -> Path | None:
    """The file whose name says a rank, by default the lowest; None if names do not say which; raises
    IngestError if no name says this rank."""
    named = {named_rank(path): path for path in files}
    if None in named or len(named) < len(files):
        return files[0] if rank is None else None
    if rank is None:
        return min(named.items(), key=lambda one: one[0] or 0)[1]
    if rank not in named:
        raise IngestError(f"no file of rank {rank} among {len(files)} files")
    return named[rank]
