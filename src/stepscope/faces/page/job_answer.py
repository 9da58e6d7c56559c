"""The page about a whole job: its ranks by stage and by step, and what its sketches say."""

from collections.abc import Sequence

import msgspec
import numpy as np

from stepscope.base.arrays import Floats
from stepscope.faces.page.bundle import data_element, page_in_one
from stepscope.faces.page.requests import filled
from stepscope.facts.summary.job_findings import JobFinding
from stepscope.models.ranks.job import Job, JobReport, findings_of
from stepscope.models.ranks.map_ranks import RankResult
from stepscope.models.ranks.process_groups import GroupRow, Lateness, lateness, pipeline_places
from stepscope.models.ranks.replay_whatifs import Slowdown
from stepscope.models.ranks.sketch import JobTable

ELEMENT = "stepscope-job"
OWN_WORK = "own work"
_MOST_NUMBERS = 1_000_000  # of all tables by step; chosen: some MB of JSON
_MOST_KINDS = 12  # of collectives; chosen: those at which ranks wait longest


class JobRank(msgspec.Struct):
    """A rank of a job."""

    rank: int
    node: str  # its machine, empty where unknown
    device: str  # its device, empty without one
    file: str  # its trace
    trace: str | None  # id of its trace on this server, null where traces cannot be opened
    waiting_ms: float  # its exposed communication per step, median
    peak_bytes: int | None  # the most memory of its device that it had allocated, null if not recorded


class JobError(msgspec.Struct):
    """A file that cannot be read, and why."""

    file: str
    error: str


class JobLateness(msgspec.Struct):
    """Arrivals of the ranks at one kind of collective."""

    name: str  # the kind, its parallel axis, and the ranks of a group where that tells them apart
    # how much later per step each rank arrives than the median rank; less than zero for ranks that wait
    # longer; 0 for those that take no part
    late_ms: list[float]


class JobAnswer(msgspec.Struct):
    """A whole job; times in ms."""

    name: str  # of the job's folder
    verdict: str  # one sentence
    step_ms: float  # the length of a step
    work_ms: float  # the median rank's own work per step
    slowest_ms: float  # the own work of the slowest rank of each step, on average
    steps: list[int]  # numbers of the steps that all ranks have
    stages: list[str]  # names of the stages that any rank has
    ranks: list[JobRank]  # in the order of their numbers
    work: list[list[float]]  # own work by stage, for each rank its median over the steps
    # own work of each rank by step, of all stages (`own work`) and of single ones: those that differ most
    # between the ranks, as many as a page can hold
    by_step: dict[str, list[list[float]]]
    # for each order of the ranks, such as `pipeline stage`, the group of each rank; -1 for none
    axes: dict[str, list[int]]
    median_rank: int  # place in `ranks` of the rank that works like the median rank
    findings: list[JobFinding]  # by cost, the most expensive first
    groups: list[GroupRow]  # collectives by kind and process groups
    lateness: list[JobLateness]  # who arrives late at them, where ranks wait longest first
    slowdown: Slowdown | None  # what imbalance costs; null for one rank
    replayed_ms: float  # the step as replayed from the sketches
    whatifs: dict[str, float]  # of more than 16 ranks the step after some changes to the whole job
    errors: list[JobError]


def job_answer(name: str, job: Job, report: JobReport, results: Sequence[RankResult]) -> JobAnswer:
    table, findings = job.table, findings_of(report)
    usual = np.median(table.work, axis=2)
    files = {result.sketch.rank: result.file for result in results if result.sketch}
    ranks = [
        filled(JobRank, row, file=files[row.rank], trace=None, peak_bytes=row.peak_memory_bytes)
        for row in report.rows
    ]
    return filled(
        JobAnswer,
        report,
        name=name,
        verdict=findings.verdict,
        steps=table.steps,
        stages=table.stages,
        ranks=ranks,
        work=_rounded(usual.T),
        by_step=_by_step(table),
        axes=_axes(job),
        median_rank=int(np.abs(usual - np.median(usual, axis=0)).sum(axis=1).argmin()),
        findings=list(findings.findings),
        groups=list(report.groups),
        lateness=_lateness(lateness(table, job.matched, job.groups)[:_MOST_KINDS]),
        errors=[filled(JobError, result) for result in results if result.sketch is None],
    )


def job_page(answer: JobAnswer) -> str:
    """The page about a job with its data, as HTML that needs nothing else."""
    return page_in_one(data_element(ELEMENT, answer), "ranks.html")


def _by_step(table: JobTable) -> dict[str, list[list[float]]]:
    """Work of shape (steps, ranks), all of it and by stage, the most different stages first."""
    spread = np.ptp(np.median(table.work, axis=2), axis=0) + np.ptp(table.work, axis=0).mean(axis=1)
    room = max(_MOST_NUMBERS // table.work[:, 0].size - 1, 0)
    chosen = np.argsort(-spread, kind="stable")[:room].tolist()
    return {
        OWN_WORK: _rounded(table.work.sum(axis=1).T),
        **{table.stages[row]: _rounded(table.work[:, row].T) for row in chosen},
    }


def _rounded(values: Floats) -> list[list[float]]:
    return np.round(values, 3).tolist()


def _axes(job: Job) -> dict[str, list[int]]:
    """The group of each rank on each parallel axis that membership reveals."""
    ranks = len(job.table.sketches)
    groups_of = {name: places.tolist() for name, places in pipeline_places(job.matched, ranks).items()}
    for shape, keys in job.groups.items():
        if shape.axis in ("", "world", "pipeline"):
            continue
        groups = groups_of.setdefault(f"{shape.axis} group", [-1] * ranks)
        for members in sorted(job.matched.members[key] for key in keys):
            if groups[members[0]] < 0:
                number = max(groups) + 1
                for member in members:
                    groups[member] = number
    return groups_of


def _lateness(found: Sequence[Lateness]) -> list[JobLateness]:
    names = [f"{kind.shape.kind} {kind.shape.axis}".strip() for kind in found]
    return [
        JobLateness(
            name if names.count(name) == 1 else f"{name}, {kind.shape.members}",
            [round(late, 4) for late in np.nan_to_num(kind.late_ms).tolist()],
        )
        for name, kind in zip(names, found, strict=True)
    ]
