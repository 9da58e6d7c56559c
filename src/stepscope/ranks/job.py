"""What the sketches of a job say together: which ranks are slow, since when, why, and the cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import repeat
from typing import Any

import numpy as np

from stepscope.arrays import Ids
from stepscope.ranks.collectives import Matched, match_calls
from stepscope.ranks.costs import of_pipeline_stages, steps_alike, together_ms, with_costs
from stepscope.ranks.group_table import GroupRow, Shape, group_rows, groups_by_shape
from stepscope.ranks.job_table import JobTable, job_table
from stepscope.ranks.pipelines import pipeline_places
from stepscope.ranks.replay import Replay, build_replay
from stepscope.ranks.sketch import Sketch
from stepscope.ranks.sketch_whatifs import whatifs
from stepscope.ranks.slow_links import find_slow_links
from stepscope.ranks.slowdown import Slowdown, slowdown
from stepscope.ranks.straggler_search import find_stragglers
from stepscope.ranks.stragglers import Straggler


@dataclass(frozen=True)
class JobReport:
    """A job in numbers; times in ms, medians over steps.

    Attributes:
        ranks: how many have a sketch.
        steps: how many steps all of them have.
        step_ms: the length of a step.
        work_ms: the median rank's own work per step.
        slowest_ms: the own work per step of the slowest rank of each step, on average.
        rows: for each rank: rank, node, device, work by stage, waiting, and the peak of its memory
            in bytes, None if unknown.
        stragglers: by cost, the most expensive first.
        groups: collectives by kind and process groups.
        replayed_ms: the step as replayed from the sketches, the mean of the ranks.
        whatifs: the step after `no_straggler`, and with twice the bandwidth.
        together_ms: what the job would gain per step without all stragglers at once.
        slowdown: what imbalance costs, by what is out of balance; None for one rank.
    """

    ranks: int
    steps: int
    step_ms: float
    work_ms: float
    slowest_ms: float
    rows: tuple[dict[str, Any], ...]
    stragglers: tuple[Straggler, ...]
    groups: tuple[GroupRow, ...] = ()
    slowdown: Slowdown | None = None
    replayed_ms: float = 0.0
    together_ms: float = 0.0
    whatifs: dict[str, float] = field(default_factory=dict)

    @property
    def slow_ranks(self) -> tuple[Straggler, ...]:
        """The stragglers that are ranks, not links."""
        return tuple(one for one in self.stragglers if not one.groups)

    def to_json(self) -> dict[str, Any]:
        """A dict that `json` can write."""
        found = asdict(self)
        for row, one in zip(found["stragglers"], self.stragglers, strict=True):
            row["sentence"] = one.sentence
        if self.slowdown:
            found["slowdown"]["ratio"] = self.slowdown.ratio
        return found


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
    def of(cls, sketches: Sequence[Sketch]) -> Job:
        """The job of some sketches, at least one, each with at least one step."""
        table = job_table(sketches)
        matched = match_calls(sketches, table.places)
        return cls(table, matched, build_replay(table, matched))

    def replay_with(self, alike: Ids) -> Replay:
        """The replay; if it is of some steps only, of some of each group of steps that are alike.

        Args:
            alike: as for `build_replay`.
        """
        if (self.replay.weights == 1).all() or not alike.any():
            return self.replay
        return build_replay(self.table, self.matched, alike)


def job_report(sketches: Sequence[Sketch]) -> JobReport:
    """Compare the ranks of a job, see `report_of`.

    Args:
        sketches: of at least one rank, each with at least one step.
    """
    return report_of(Job.of(sketches))


def report_of(job: Job) -> JobReport:
    """Compare the ranks of a job.

    The own work of each rank is compared with the median rank, stage by stage and step by step.
    Waiting inside collectives does not count as work: the ranks that wait are not the slow ones.
    What a finding costs is found by a replay of the job without it.
    """
    table = job.table
    pipeline_stage = pipeline_places(job.matched, len(table.sketches)).get("pipeline stage")
    slow = of_pipeline_stages(find_stragglers(table, pipeline_stage), table, pipeline_stage)
    links = find_slow_links(table, job.matched)
    replay = job.replay_with(steps_alike(slow, links, table))
    own = table.work.sum(axis=1)
    return JobReport(
        ranks=len(table.sketches),
        steps=len(table.steps),
        step_ms=table.step_ms,
        work_ms=float(np.median(own)),
        slowest_ms=float(own.max(axis=0).mean()),
        rows=_rows(table),
        stragglers=with_costs(slow, links, table, replay) if slow or links else (),
        groups=group_rows(table, job.matched, job.groups),
        slowdown=slowdown(table, replay) if len(table.sketches) > 1 else None,
        replayed_ms=replay.step_ms,
        together_ms=together_ms(slow, links, table, replay),
        whatifs=whatifs(table, replay),
    )


def _rows(table: JobTable) -> tuple[dict[str, Any], ...]:
    usual = np.median(table.work, axis=2).round(4).tolist()
    return tuple(map(_row, table.sketches, repeat(table.stages), usual))


def _row(sketch: Sketch, stages: Sequence[str], work_ms: list[float]) -> dict[str, Any]:
    return {
        "rank": sketch.rank, "node": sketch.node, "device": sketch.device,
        "work_ms": dict(zip(stages, work_ms, strict=True)),
        "waiting_ms": round(float(np.median(sketch.waiting)), 4) if sketch.waiting else 0.0,
        "peak_memory_bytes": sketch.peak_bytes,
    }  # fmt: skip
