"""The trainings of a run, one after the other: a sweep, folds, a fine-tuning after a pretraining.

Optimizers that step in turns, as those of a GAN, belong to one training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stepscope.capture.run_shares.activity_log import ActivityLog, Gaps, OptimizerSteps, Phase
from stepscope.capture.run_shares.duration_histogram import DurationHistogram

_RARE_OPTIMIZER = 0.05
_LASTING = 0.5  # of a training
_MOST_DESCRIBED = 200
_ALIKE = 2  # times as long a step
_MUCH = 0.5  # of the time of all trainings
_LONG = 3  # times as long a training


@dataclass(frozen=True)
class Training:
    """Optimizers that step in turns.

    Attributes:
        optimizers: in the order of their first steps.
    """

    optimizers: list[OptimizerSteps]

    @property
    def first(self) -> int:
        """The number of its first optimizer among all."""
        return self.optimizers[0].first.number

    @property
    def begun_ns(self) -> int:
        """When its first step began."""
        return self.optimizers[0].begun_ns

    @property
    def ended_ns(self) -> int:
        """When its last step ended, so far."""
        return max(steps.ended_ns for steps in self.optimizers)

    @property
    def elapsed_ns(self) -> int:
        """Its time from the first step to the last, evaluation between them included."""
        return self.ended_ns - self.begun_ns

    @property
    def boundary(self) -> OptimizerSteps:
        """The optimizer that steps least often: its steps end those of the training.

        Of those that step all along: one may be made for a few steps inside each step of another.
        """
        lasting = [
            steps
            for steps in self.optimizers
            if steps.ended_ns - steps.begun_ns >= _LASTING * self.elapsed_ns
        ] or self.optimizers
        most = max(steps.count for steps in lasting)
        frequent = [steps for steps in lasting if steps.count >= _RARE_OPTIMIZER * most]
        return min(frequent, key=lambda steps: steps.count)

    @property
    def steps(self) -> int:
        """Its steps, as the step detector counts them."""
        return self.boundary.count

    @property
    def step_ns(self) -> int:
        """The usual length of a step."""
        updates = sum(steps.count for steps in self.optimizers)
        return merged_lengths(self.phases).median_ns() * updates // self.steps

    @property
    def phases(self) -> list[Phase]:
        """The phases of its optimizers."""
        return list(dict.fromkeys(steps.phase for steps in self.optimizers))

    def is_like(self, other: Training) -> bool:
        """Whether both train at the same line, with steps that take about as long."""
        is_same = self.optimizers[0].first.does_as(other.optimizers[0].first)
        shorter, longer = sorted([self.step_ns, other.step_ns])
        return is_same and longer <= _ALIKE * shorter


def trainings_of(log: ActivityLog) -> list[Training]:
    """The trainings of a run so far, in their order."""
    found: list[Training] = []
    for steps in log.optimizers:
        if found and steps.begun_ns < found[-1].ended_ns:
            found[-1].optimizers.append(steps)
        else:
            found.append(Training([steps]))
    return found


def phases_by_training(log: ActivityLog) -> list[list[Phase]]:
    """The phases of each training, each phase once; all of them where no optimizer stepped."""
    first_of: dict[Phase, int] = {}
    for training in trainings_of(log):
        for phase in training.phases:
            first_of.setdefault(phase, training.first)
    found: dict[int, list[Phase]] = {}
    for phase, first in first_of.items():
        found.setdefault(first, []).append(phase)
    return list(found.values()) or [log.phases]


def merged_lengths(phases: list[Phase]) -> DurationHistogram:
    """The step lengths of several phases."""
    merged = DurationHistogram()
    for phase in phases:
        merged.merge(phase.step_lengths)
    return merged


def merged_gaps(phases: list[Phase]) -> Gaps:
    """The gaps of several phases."""
    merged: Gaps = {}
    for phase in phases:
        for pair, gaps in phase.gaps.items():
            merged.setdefault(pair, DurationHistogram()).merge(gaps)
    return merged


def recorded_one(log: ActivityLog, trainings: list[Training]) -> Training | None:
    """The training whose steps are recorded."""
    begun = [t for t in trainings if log.recorded_ns and t.begun_ns <= log.recorded_ns]
    return begun[-1] if begun else None


def describe_trainings(log: ActivityLog, step_every: int) -> list[dict[str, Any]]:
    """The trainings for manifest.json; `first_optimizer` counts from 1."""
    trainings = trainings_of(log)
    recorded = recorded_one(log, trainings)
    return [
        {
            "first_optimizer": training.first,
            "optimizers": len(training.optimizers),
            "class": training.boundary.first.name,
            "function": training.boundary.first.function,
            "file": training.boundary.first.file,
            "line": training.boundary.first.line,
            "steps": training.steps // step_every,
            "step_ns": training.step_ns * step_every,
            "elapsed_ns": training.elapsed_ns,
            "recorded": training is recorded,
        }
        for training in trainings[:_MOST_DESCRIBED]
    ]


def unrecorded_training(log: ActivityLog) -> str | None:
    """What the reader of a recording has to know of trainings unlike the recorded one."""
    trainings = trainings_of(log)
    recorded = recorded_one(log, trainings)
    if recorded is None:
        return None
    total = sum(training.elapsed_ns for training in trainings)
    others = [training for training in trainings if not training.is_like(recorded)]
    if sum(training.elapsed_ns for training in others) <= _MUCH * total:
        return None
    longest = max(others, key=lambda training: training.elapsed_ns)
    if longest.elapsed_ns <= _LONG * recorded.elapsed_ns:
        return None
    return (
        f"the run has {len(trainings)} trainings, and the recorded steps are of "
        f"the {_ordinal(trainings, recorded)}, {recorded.elapsed_ns / total:.0%} of their time; "
        f"to record the {_ordinal(trainings, longest)} ({longest.elapsed_ns / total:.0%}): "
        f"stepscope run --from-optimizer {longest.first}"
    )


def _ordinal(trainings: list[Training], training: Training) -> str:
    number = trainings.index(training) + 1
    if number == len(trainings):
        return "last"
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")
