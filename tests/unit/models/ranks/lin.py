"""The slowdown of a pipelined job after Lin et al. 2025, from a simulator of the tests' own.

Source: Understanding Stragglers in Large Model Training Using What-if Analysis, sections 3.2 and 4:
an operation in balance takes the mean of its type over all workers, micro-batches and steps, a
transfer the median; a part's share is what it alone, left as it was, makes of the slowdown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from statistics import mean, median

from pipelined_job import _SYNC_US, COMPUTE, Job, Op, _schedule


class Oracle:
    """The job as it is, in balance, and with single parts left as they were."""

    def __init__(self, job: Job) -> None:
        self._steps = [job._step() for _ in range(job.steps)]
        self._ops = [op for ranks in self._steps for ops in ranks for op in ops]
        self._recorded = {id(op): op.length_us for op in self._ops}
        self._ideal = self._balanced()
        self.step_us, self.ideal_us = self._time(lambda _: True), self._time(lambda _: False)

    @property
    def ratio(self) -> float:
        return self.step_us / self.ideal_us

    def share(self, stays: Callable[[Op], bool]) -> float:
        """What some operations, left as they were, make of the slowdown."""
        return (self._time(stays) - self.ideal_us) / (self.step_us - self.ideal_us)

    def _time(self, stays: Callable[[Op], bool]) -> float:
        """The mean step if all but these operations are in balance."""
        for op in self._ops:
            op.length_us = (self._recorded if stays(op) else self._ideal)[id(op)]
        begin = [0.0] * len(self._steps[0])
        for ranks in self._steps:
            _schedule(ranks, begin)
            begin = [max(op.end_us for op in ops) + _SYNC_US for ops in ranks]
        return (mean(begin) - _SYNC_US) / len(self._steps)

    def _balanced(self) -> dict[int, float]:
        """The length of each piece of work in balance; the kernels of a pass are its parts."""
        operations: dict[Hashable, list[Op]] = defaultdict(list)
        for number, ranks in enumerate(self._steps):
            for op in (op for ops in ranks for op in ops):
                operations[(number, op.rank, op.number) if op.number else id(op)].append(op)
        of_type: dict[Hashable, list[list[Op]]] = defaultdict(list)
        for ops in operations.values():
            first = ops[0]
            of_type[first.number.way if first.number else (first.name, first.stream)].append(ops)
        ideal = {}
        for same in of_type.values():
            usual = mean if same[0][0].stream == COMPUTE else median
            length = usual([sum(self._recorded[id(op)] for op in ops) for ops in same])
            ideal |= {id(op): length / len(ops) for ops in same for op in ops}
        return ideal
