"""The numbers of all ranks side by side, for the steps that all have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.arrays import Floats
from stepscope.ranks.sketch import Sketch
from stepscope.trace.schema import STAGES

PAIR = 2


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

    @property
    def step_ms(self) -> float:
        """The median length of a step."""
        return float(np.median(self.length))


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


def usual(values: Floats) -> Floats:
    """What a rank that is not slow takes: the median rank, of two ranks the faster one.

    Args:
        values: shape (ranks, n).
    """
    result: Floats = np.median(values, axis=0) if len(values) > PAIR else values.min(axis=0)
    return result
