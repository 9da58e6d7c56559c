"""What each activity of a run was, and the shares of the run.

What happens in most steps is part of a step: the forward pass of a teacher, a moving average of
the weights. A block without gradients is evaluation or rollout if a calling function is named so
(`validate`, `collect`), if it repeats many times between two training passes, or if it runs only
once in a while. Time between activities of one kind is of that kind. A gap between training
passes that is far longer than usual is not part of a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stepscope.capture.run_shares.activity_log import Activity, ActivityLog, Gaps, Phase
from stepscope.capture.run_shares.duration_histogram import DurationHistogram
from stepscope.capture.run_shares.trainings import (
    describe_trainings,
    merged_gaps,
    merged_lengths,
    phases_by_training,
    trainings_of,
)

STAGES = (
    "start_up", "training_steps", "data_preparation", "evaluation", "rollout", "checkpointing",
    "other",
)  # fmt: skip
_TRAINING, _OTHER = "training_steps", "other"
_OF_KIND = {
    "start": "start_up", "backward": _TRAINING, "optimizer": _TRAINING, "eval_mode": "evaluation",
    "saving": "checkpointing",
}  # fmt: skip
_LOOP = 4  # repetitions without training in between
_USUAL = 0.5  # of the steps
_LONG_GAP, _LONG_STEP = 4, 0.5  # times the usual gap, and the usual step
_MOST_PLACES = 8


def describe(log: ActivityLog, step_every: int, *, ended: bool) -> dict[str, Any] | None:
    """The shares of the run so far, for manifest.json.

    Args:
        log: the activities of the thread that trains.
        step_every: optimizer steps per step.
        ended: whether the run is over.

    Returns:
        `elapsed_ns` is the sum of `stages_ns`; None if nothing trained in this thread.
    """
    log.count_noted()
    if not log.has_trained:
        return None
    stages = _Stages(log)
    trainings = describe_trainings(log, step_every)
    return {
        "ended": ended,
        "elapsed_ns": sum(stages.ns.values()),
        "recorder_ns": log.excluded_ns,
        "steps": sum(training.steps for training in trainings_of(log)) // step_every,
        "first_step_ns": log.first_step_ns,
        "data_loading_ns": stages.loading_ns,
        "torch_imported_ns": log.torch_imported_ns,
        "stages_ns": stages.ns,
        "places": stages.places(),
        "trainings": trainings,
    }


class _Stages:
    def __init__(self, log: ActivityLog) -> None:
        self._log = log
        self.ns = dict.fromkeys(STAGES, 0)
        self.loading_ns = 0
        self._of_place: dict[Activity, int] = {}
        self._stage = {activity: stage_of(activity) for activity in log.activities}
        for activity in self._stage:
            self._add_own(activity)
        self._add_gaps_of_start_up(log.early_gaps)
        for phases in phases_by_training(log):
            self._add_gaps_of(phases)
        for running, spent in log.tail():
            if running:
                self._add(self._stage.setdefault(running, stage_of(running)), spent, running)
            else:
                self._add(_OTHER, spent)

    def places(self) -> list[dict[str, Any]]:
        """Where evaluation, rollout and checkpointing begin, the longest first."""
        parts = _TRAINING, "start_up"
        known = [place for place in self._of_place if self._stage[place] not in parts]
        known.sort(key=lambda place: -self._of_place[place])
        return [
            {
                "stage": self._stage[place],
                "function": place.function,
                "file": place.file,
                "line": place.line,
                "count": place.count,
                "ns": self._of_place[place],
            }
            for place in known[:_MOST_PLACES]
        ]

    def _add(self, stage: str, spent_ns: int, place: Activity | None = None) -> None:
        self.ns[stage] += spent_ns
        if place and place.file:
            self._of_place[place] = self._of_place.get(place, 0) + spent_ns

    def _add_own(self, activity: Activity) -> None:
        stage = self._stage[activity]
        if stage == _TRAINING:
            self._add("data_preparation", activity.starting_ns)
            self._add(stage, activity.own_ns - activity.starting_ns)
            self.loading_ns += activity.loading_ns
        else:
            self._add(stage, activity.own_ns, activity)

    def _add_gaps_of_start_up(self, gaps: Gaps) -> None:
        for (before, after), found in gaps.items():
            stage = self._stage[after]
            if self._stage[before] == stage != _TRAINING:
                self._add(stage, found.total_ns, after)
            else:
                self._add("start_up", found.total_ns)

    def _add_gaps_of(self, phases: list[Phase]) -> None:
        gaps = merged_gaps(phases)
        usual = _Usual(merged_lengths(phases).median_ns(), self._usual_gaps_before(gaps))
        for pair, found in gaps.items():
            self._add_gaps(*pair, found, usual)

    def _add_gaps(
        self, before: Activity, after: Activity, found: DurationHistogram, usual: _Usual
    ) -> None:
        first, then = self._stage[before], self._stage[after]
        if then == _TRAINING:
            training_ns = usual.training_time(first == _TRAINING, after, found)
            self._add(_TRAINING, training_ns)
            self._add(_OTHER, found.total_ns - training_ns)
        elif first == then:
            self._add(then, found.total_ns, after)
        else:
            self._add(_OTHER, found.total_ns)

    def _usual_gaps_before(self, gaps: Gaps) -> dict[Activity, int]:
        """The median gap from training to each training activity."""
        pooled: dict[Activity, DurationHistogram] = {}
        for (before, after), found in gaps.items():
            if self._stage[before] == self._stage[after] == _TRAINING:
                pooled.setdefault(after, DurationHistogram()).merge(found)
        return {after: found.median_ns() for after, found in pooled.items()}


@dataclass(frozen=True)
class _Usual:
    """The usual step of a training, and its usual gap before each training activity."""

    step_ns: int
    gaps: dict[Activity, int]

    def training_time(
        self, follows_training: bool, after: Activity, found: DurationHistogram
    ) -> int:
        """How much of the gaps before a training activity is part of steps."""
        if follows_training:
            median = found.median_ns()
            longest = max(_LONG_GAP * median, round(_LONG_STEP * self.step_ns))
            return found.cut_at(longest, median)
        usual = self.gaps.get(after)
        return found.total_ns if usual is None else found.cut_at(usual, usual)


def stage_of(activity: Activity) -> str:
    """The stage of an activity."""
    if activity.kind in _OF_KIND:
        return _OF_KIND[activity.kind]
    if activity.purpose:
        return activity.purpose
    is_loop = activity.count >= _LOOP * activity.runs
    if not is_loop and _is_part_of_steps(activity):
        return _TRAINING
    if not (is_loop or activity.in_eval_mode or activity.count_in_training):
        return "start_up"
    return "evaluation" if activity.in_eval_mode or activity.reads_batches else "rollout"


def _is_part_of_steps(activity: Activity) -> bool:
    steps = activity.last_step - activity.first_step + 1
    return activity.count_in_training > 1 and activity.runs > _USUAL * steps
