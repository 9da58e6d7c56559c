"""The shares of a run: what each of its activities was, and its trainings, one after the other.

Time between activities of one stage is of that stage. A gap between training passes that is far
longer than usual is not part of a step.

Optimizers that step in turns, as those of a GAN, belong to one training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepscope.record.patch import ignoring
from stepscope.record.run_shares.activity_log import (
    OTHER,
    STAGES,
    START_UP,
    TRAINING,
    Activity,
    ActivityLog,
    Durations,
    OptimizerSteps,
)

if TYPE_CHECKING:
    from stepscope.record.run_shares.activity_hooks import ActivityHooks

_LONG_GAP, _LONG_STEP = 4, 0.5  # times the usual gap, and the usual step
_MOST_PLACES = 8  # written to the manifest
_FEWEST = 3  # times that it ran: recording made one of them longer

_RARE_OPTIMIZER = 0.05  # of the steps of the most frequent one
_LASTING = 0.5  # of a training
_MOST_TRAININGS = 200  # written to the manifest
_ALIKE = 2  # times as long a step
_MUCH = 0.5  # of the time of all trainings
_LONG = 3  # times as long a training

_GROWTH = 0.5  # a run that is killed has lost at most the last third of its shares
_SHORTEST_NS = 1_000_000_000  # between two updates of the file
_MOST_COST = 0.01  # of the run


class RunClock:
    """The shares of a run that begins now."""

    def __init__(self, step_every: int = 1) -> None:
        self.log = ActivityLog()
        self._step_every = step_every
        self._hooks: ActivityHooks | None = None

    def attach(self) -> None:
        """Torch has been imported: watch the activities of this thread."""
        from stepscope.record.run_shares.activity_hooks import ActivityHooks

        self.log.torch_imported_ns = self.log.now() - self.log.begun_ns
        self._hooks = ActivityHooks(self.log)

    def detach(self) -> None:
        if self._hooks:
            self._hooks.remove()

    def mark_activities(self, marks: bool) -> None:
        """Whether activities are ranges in the trace that is being recorded."""
        if marks:
            self.log.recorded_ns = self.log.now()
        if self._hooks:
            self._hooks.marks = marks

    def describe(self, *, ended: bool) -> dict[str, Any] | None:
        """The shares so far; None where they are unknown."""
        facts = describe(self.log, self._step_every, ended=ended)
        workers = self._hooks.workers.describe() if self._hooks else None
        return {**facts, "worker_starts": workers} if facts and workers else facts

    def publish_now_and_then(self, publish: Callable[[dict[str, Any]], None]) -> None:
        """Call `publish` with the shares between steps, ever less often."""
        self.log.on_due = lambda: self._publish(publish)
        self._set_due(0)

    def _publish(self, publish: Callable[[dict[str, Any]], None]) -> None:
        begun = self.log.clock()
        with self.log.excluding(), ignoring(Exception):  # called from a hook of the program
            if facts := self.describe(ended=False):
                publish(facts)
        self._set_due(self.log.clock() - begun)

    def _set_due(self, cost_ns: int) -> None:
        now = self.log.now()
        grown = round(_GROWTH * (now - self.log.begun_ns))
        self.log.due_ns = now + max(_SHORTEST_NS, grown, round(cost_ns / _MOST_COST))


def describe(log: ActivityLog, step_every: int, *, ended: bool) -> dict[str, Any] | None:
    """The shares of the run so far, for manifest.json; None if nothing trained in this thread."""
    log.count_noted()
    if not log.has_trained:
        return None
    stages = _Stages(log)
    trainings = trainings_of(log)
    recorded = _recorded_one(log, trainings)
    return {
        "ended": ended,
        "elapsed_ns": sum(stages.ns.values()),
        "recorder_ns": log.excluded_ns,
        "steps": sum(training.steps for training in trainings) // step_every,
        "first_step_ns": log.first_step_ns,
        "data_loading_ns": stages.loading_ns,
        "torch_imported_ns": log.torch_imported_ns,
        "stages_ns": stages.ns,
        "places": stages.places(),
        "trainings": [
            training.describe(step_every, is_recorded=training is recorded)
            for training in trainings[:_MOST_TRAININGS]
        ],
    }


class _Stages:
    """Gives the time of each activity and each gap to a stage."""

    def __init__(self, log: ActivityLog) -> None:
        self.ns = dict.fromkeys(STAGES, 0)
        self.loading_ns = 0
        self._of_place: dict[Activity, int] = {}
        self._stage = {activity: activity.stage for activity in log.activities}
        for activity in self._stage:
            self._add_own(activity)
        self._add_gaps(log)
        for running, spent in log.tail():
            if running:
                self._add(self._stage.setdefault(running, running.stage), spent, running)
            else:
                self._add(OTHER, spent)

    def places(self) -> list[dict[str, Any]]:
        """Where evaluation, rollout and checkpointing begin, the longest first."""
        places = [p for p in self._of_place if self._stage[p] not in (TRAINING, START_UP)]
        places.sort(key=lambda place: -self._of_place[place])
        return [
            {
                "stage": self._stage[place],
                "function": place.function,
                "file": place.file,
                "line": place.line,
                "count": place.count,
                "median_ns": place.lengths.median_ns() if place.count >= _FEWEST else None,
                "ns": self._of_place[place],
            }
            for place in places[:_MOST_PLACES]
        ]

    def _add(self, stage: str, spent_ns: int, place: Activity | None = None) -> None:
        self.ns[stage] += spent_ns
        if place and place.file:
            self._of_place[place] = self._of_place.get(place, 0) + spent_ns

    def _add_own(self, activity: Activity) -> None:
        stage = self._stage[activity]
        if stage == TRAINING:
            self._add("data_preparation", activity.starting_ns)
            self._add(stage, activity.own_ns - activity.starting_ns)
            self.loading_ns += activity.loading_ns
        else:
            self._add(stage, activity.own_ns, activity)

    def _add_gaps(self, log: ActivityLog) -> None:
        usual = self._usual_gaps(log)
        step_ns = {
            activity: steps.lengths.median_ns()
            for steps in log.optimizers
            for activity in (steps.backward, steps.optimizer)
        }
        for (before, after, has_trained), lengths in log.gaps.items():
            stage, total = self._stage[after], lengths.total_ns
            if self._stage[before] == stage != TRAINING:  # what lies between is of this stage, too
                self._add(stage, total, after)
            elif not has_trained or stage != TRAINING:
                self._add(OTHER if has_trained else START_UP, total)
            else:
                if self._stage[before] == TRAINING:
                    usual_ns = lengths.median_ns()
                    step = step_ns.get(after, step_ns.get(before, 0))
                    longest_ns = max(_LONG_GAP * usual_ns, round(_LONG_STEP * step))
                else:
                    usual_ns = longest_ns = usual.get(after, total)
                spent = lengths.cut_at(longest_ns, usual_ns)
                self._add(TRAINING, spent)
                self._add(OTHER, total - spent)

    def _usual_gaps(self, log: ActivityLog) -> dict[Activity, int]:
        """The median of the most frequent gap from training to each training activity."""
        frequent: dict[Activity, Durations] = {}
        for (before, after, _), lengths in log.gaps.items():
            if self._stage[before] == self._stage[after] == TRAINING:
                frequent[after] = max(frequent.get(after, lengths), lengths, key=lambda gaps: gaps.count)
        return {after: lengths.median_ns() for after, lengths in frequent.items()}


@dataclass(frozen=True)
class Training:
    """Optimizers that step in turns, in the order of their first steps."""

    optimizers: list[OptimizerSteps]

    @property
    def begun_ns(self) -> int:
        return self.optimizers[0].begun_ns

    @property
    def ended_ns(self) -> int:
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
        least_ns = _LASTING * self.elapsed_ns
        lasting = [s for s in self.optimizers if s.ended_ns - s.begun_ns >= least_ns]
        lasting = lasting or self.optimizers
        most = max(steps.count for steps in lasting)
        frequent = [steps for steps in lasting if steps.count >= _RARE_OPTIMIZER * most]
        return min(frequent, key=lambda steps: steps.count)

    @property
    def steps(self) -> int:
        return self.boundary.count

    @property
    def step_ns(self) -> int:
        """The usual length of a step."""
        return sum(steps.lengths.median_ns() * steps.count for steps in self.optimizers) // self.steps

    def is_like(self, other: Training) -> bool:
        """Whether both train at the same line, with steps that take about as long."""
        shorter, longer = sorted([self.step_ns, other.step_ns])
        is_same = self.optimizers[0].first.does_as(other.optimizers[0].first)
        return is_same and longer <= _ALIKE * shorter

    def describe(self, step_every: int, *, is_recorded: bool) -> dict[str, Any]:
        """As manifest.json has it; `first_optimizer` counts from 1."""
        optimizer = self.boundary.first
        return {
            "first_optimizer": self.optimizers[0].first.number,
            "optimizers": len(self.optimizers),
            "class": optimizer.name,
            "function": optimizer.place.function,
            "file": optimizer.place.file,
            "line": optimizer.place.line,
            "steps": self.steps // step_every,
            "step_ns": self.step_ns * step_every,
            "elapsed_ns": self.elapsed_ns,
            "recorded": is_recorded,
        }


def trainings_of(log: ActivityLog) -> list[Training]:
    trainings: list[Training] = []
    for steps in log.optimizers:
        if trainings and steps.begun_ns < trainings[-1].ended_ns:
            trainings[-1].optimizers.append(steps)
        else:
            trainings.append(Training([steps]))
    return trainings


def _recorded_one(log: ActivityLog, trainings: list[Training]) -> Training | None:
    begun = [t for t in trainings if log.recorded_ns and t.begun_ns <= log.recorded_ns]
    return begun[-1] if begun else None


def unrecorded_training(log: ActivityLog) -> str | None:
    """What the reader of a recording has to know of trainings unlike the recorded one."""
    trainings = trainings_of(log)
    recorded = _recorded_one(log, trainings)
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
        f"number {trainings.index(recorded) + 1}, {recorded.elapsed_ns / total:.0%} of their time; "
        f"to record number {trainings.index(longest) + 1} ({longest.elapsed_ns / total:.0%}): "
        f"stepscope run --from-optimizer {longest.optimizers[0].first.number}"
    )
