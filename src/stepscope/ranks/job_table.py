"""The numbers of all ranks side by side, for the steps that all have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.arrays import Floats
from stepscope.ranks.sketch import Sketch
from stepscope.trace.schema import STAGES


@dataclass(frozen=True)
class JobTable:
    """A job's ranks side by side; times in ms.

    Attributes:
        sketches: of the ranks.
        steps: numbers of the steps that all ranks have.
        places: for each sketch the positions of these steps.
        stages: names of the stages that any rank has.
        work: own work, shape (ranks, stages, steps).
        length: of the steps, shape (ranks, steps).
    """

    sketches: Sequence[Sketch]
    steps: list[int]
    places: list[list[int]]
    stages: list[str]
    work: Floats
    length: Floats

    @cached_property
    def step_ms(self) -> float:
        """The median length of a step."""
        return float(np.median(self.length))

    @cached_property
    def own_ms(self) -> Floats:
        """The progress of each rank in each step: its time without waiting, shape (ranks, steps).

        Where no communication is known, the sum of its stages.
        """
        return np.array([
            np.array(one.calls.own_ns, np.float64)[place] / 1e6
            if len(one.calls.own_ns) == len(one.steps) else work.sum(axis=0)
            for one, place, work in zip(self.sketches, self.places, self.work, strict=True)
        ])  # fmt: skip

    @cached_property
    def received(self) -> Floats:
        """What each rank receives in all-to-all, bytes per step, shape (ranks,); 0 if unknown."""
        return np.array([_received(one) for one in self.sketches])


def _received(sketch: Sketch) -> float:
    exchanges = [kind.kind.startswith("alltoall") for kind in sketch.calls.kinds]
    if not any(exchanges):
        return 0.0
    columns = sketch.calls.columns()
    mine = np.array(exchanges, np.bool_)[columns.kind] & (columns.received > 0)
    return float(columns.received[mine].sum() / max(len(np.unique(columns.step)), 1))


def short_ranks(sketches: Sequence[Sketch]) -> set[int]:
    """Ranks with fewer than half of the median rank's steps: all others would be cut to theirs."""
    if not sketches:
        return set()
    usual = float(np.median([len(one.steps) for one in sketches]))
    return {one.rank for one in sketches if len(one.steps) < usual / 2}


def job_table(sketches: Sequence[Sketch]) -> JobTable:
    """Put ranks side by side; ranks that number their steps differently by position."""
    steps = sorted(set.intersection(*(set(one.steps) for one in sketches)))
    if steps:
        places = [[one.steps.index(step) for step in steps] for one in sketches]
    else:
        count = min(len(one.steps) for one in sketches)
        places = [list(range(count)) for _ in sketches]
        steps = sketches[0].steps[:count]
    present = {stage for one in sketches for stage in one.work}
    stages = [stage for stage in (*STAGES, "host") if stage in present]
    work = np.array([
        [_at(one.work.get(stage), place) for stage in stages]
        for one, place in zip(sketches, places, strict=True)
    ])  # fmt: skip
    length = np.array([_at(one.length, place) for one, place in zip(sketches, places, strict=True)])
    return JobTable(sketches, steps, places, stages, work, length)


def _at(values: list[float] | None, places: list[int]) -> Floats:
    if values is None:
        return np.zeros(len(places))
    return np.array(values)[places]
