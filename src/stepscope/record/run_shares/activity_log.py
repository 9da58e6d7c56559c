"""Adds up what the training thread does over the whole run, in constant memory.

What happens in every step is only noted, with its time, and counted later, many steps at once: code
that runs once per step finds its data in no cache, and would take them from the program.

The run is a sequence of *activities* (backward passes, optimizer steps, blocks without gradients,
saving) and of gaps between them, in which forward passes and everything else run. Every activity
has its own time; the gaps are counted by which activity comes before and which after.
`run_shares` adds them up at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from stepscope.record.unreplaced import time

STAGES = ("start_up", "training_steps", "data_preparation", "evaluation", "rollout", "checkpointing", "other")
START_UP, TRAINING, OTHER = "start_up", "training_steps", "other"
_OF_KIND = {
    "start": START_UP,
    "backward": TRAINING,
    "optimizer": TRAINING,
    "eval_mode": "evaluation",
    "saving": "checkpointing",
}
_LOOP = 4  # repetitions without training in between
_USUAL = 0.5  # of the steps
_BINS_PER_OCTAVE = 8  # each 9 % wide
_COUNTED_EVERY_NS = 100_000_000  # some hundred steps of the shortest kind
_MOST_PHASES = 200  # memory must not grow with the run
_FEW_STEPS = 10  # fewer are no training of their own
_LATEST = 8  # of them, a new optimizer may go on with one


class DurationHistogram:
    """Count and sum of durations by length, in bins 9 % wide."""

    def __init__(self) -> None:
        self._bins: dict[int, list[int]] = {}
        self.total_ns = 0

    def add(self, duration_ns: int) -> None:
        key = int(math.log2(duration_ns) * _BINS_PER_OCTAVE) if duration_ns > 0 else -1
        self._add(key, 1, duration_ns)

    def merge(self, other: DurationHistogram) -> None:
        for key, (count, total) in other._bins.items():
            self._add(key, count, total)

    def _add(self, key: int, count: int, total_ns: int) -> None:
        counted = self._bins.setdefault(key, [0, 0])
        counted[0] += count
        counted[1] += total_ns
        self.total_ns += total_ns

    def median_ns(self) -> int:
        """The mean of the bin that holds the median; 0 if nothing was counted."""
        left = sum(count for count, _ in self._bins.values()) / 2
        for _, (count, total) in sorted(self._bins.items()):
            left -= count
            if left <= 0:
                return total // count
        return 0

    def cut_at(self, most_ns: int, to_ns: int) -> int:
        """The sum where each duration longer than `most_ns` counts as `to_ns`."""
        means = ((count, total, total / count) for count, total in self._bins.values())
        return sum(count * to_ns if mean > most_ns else total for count, total, mean in means)


@dataclass(eq=False)
class Activity:
    """What repeats at one place of the program."""

    kind: str  # `start`, `backward`, `optimizer`, `no_grad`, `eval_mode` or `saving`
    function: str = ""  # where the program begins it
    file: str = ""
    line: int = 0
    purpose: str | None = None  # `evaluation` or `rollout`, where the name of a calling function says so
    own_ns: int = 0  # its time
    loading_ns: int = 0  # how much of that the program waited for batches of a DataLoader
    starting_ns: int = 0  # how much of that DataLoaders took to start and to give their first batch
    lengths: DurationHistogram = field(default_factory=DurationHistogram)  # of blocks and of saving
    count: int = 0  # how often it ran
    count_in_training: int = 0  # how often after training had begun
    runs: int = 0  # how often it ran without training in between, several repetitions as one
    first_step: int = -1  # optimizer steps before its first and its last run
    last_step: int = -1
    in_eval_mode: bool = False  # whether a model was in evaluation mode
    reads_batches: bool = False  # whether a DataLoader was asked for batches inside it
    last_cycle: int = -1

    @property
    def stage(self) -> str:
        """What it was, as far as is known.

        What happens in most steps is part of a step: the forward pass of a teacher, a moving
        average of the weights. A block without gradients is evaluation or rollout if a calling
        function is named so (`validate`, `collect`), if it repeats many times between two training
        passes, or if it runs only once in a while.
        """
        if self.kind in _OF_KIND:
            return _OF_KIND[self.kind]
        if self.purpose:
            return self.purpose
        is_loop = self.count >= _LOOP * self.runs
        if not is_loop and self._is_part_of_steps:
            return TRAINING
        if not (is_loop or self.in_eval_mode or self.count_in_training):
            return START_UP
        return "evaluation" if self.in_eval_mode or self.reads_batches else "rollout"

    @property
    def _is_part_of_steps(self) -> bool:
        steps = self.last_step - self.first_step + 1
        return self.count_in_training > 1 and self.runs > _USUAL * steps


Gaps = dict[tuple[Activity, Activity], DurationHistogram]


@dataclass(eq=False)
class RunPhase:
    """The run from the first step of an optimizer until another one steps first.

    Each has activities of its own for training, so that its gaps are counted on their own.
    """

    backward: Activity = field(default_factory=lambda: Activity("backward"))
    optimizer: Activity = field(default_factory=lambda: Activity("optimizer"))
    # Time from one optimizer step to the next.
    step_lengths: DurationHistogram = field(default_factory=DurationHistogram)


@dataclass(eq=False)
class SteppingOptimizer:
    """An optimizer that steps."""

    name: str  # its class
    function: str = ""  # where the program calls its first step
    file: str = ""
    line: int = 0
    number: int = 0  # counted from 1 in the order of first steps
    count: int = 0  # how often it stepped
    steps: OptimizerSteps | None = None  # where its steps are counted; None before the first

    def does_as(self, other: SteppingOptimizer) -> bool:
        """Whether the program calls both at the same line."""
        return (self.name, self.file, self.line) == (other.name, other.file, other.line)


@dataclass(eq=False)
class OptimizerSteps:
    """The steps of one optimizer, or of several that follow each other at one line, a few each."""

    first: SteppingOptimizer  # the optimizers
    latest: SteppingOptimizer
    count: int = 0  # how often all of them stepped
    begun_ns: int = 0  # when the first step began and the last one ended
    ended_ns: int = 0
    phase: RunPhase = field(default_factory=RunPhase)  # the run since the first step


@dataclass
class ActivityLog:
    """The activities of one thread."""

    # In ns; a program may replace the one in `time` later.
    clock: Callable[[], int] = field(default_factory=lambda: time.perf_counter_ns)
    excluded_ns: int = 0  # time of the recorder, which does not count
    torch_imported_ns: int | None = None  # from the start of the run until torch was imported
    # Those that stepped, in the order of their first steps.
    optimizers: list[OptimizerSteps] = field(default_factory=list)
    # What repeats while these steps are at work, and before the first of them.
    phases: list[RunPhase] = field(default_factory=lambda: [RunPhase()])
    # Gaps before training begins, by the activities around them.
    early_gaps: Gaps = field(default_factory=dict)
    gaps: Gaps = field(default_factory=dict)  # later ones
    recorded_ns: int | None = None  # when the steps that are kept began to be recorded
    first_step_ns: int | None = None  # the first step, in which compilers and allocators warm up
    has_trained: bool = False
    due_ns: int | None = None  # when to call `on_due`, at the end of a step; None for never
    on_due: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.begun_ns = self.clock()
        self._noted: list[tuple[Callable[[Any], object], Any, int]] = []
        self._count_after_ns = self.begun_ns + _COUNTED_EVERY_NS
        self._noted_ns: int | None = None  # when what is counted now was noted
        self._last, self._last_end = Activity("start"), self.begun_ns
        self.activities = {self._last: None}  # in order
        self._open: Activity | None = None
        self._since = self._nested_since = 0
        self._stepping: SteppingOptimizer | None = None
        # What the next activity needs: since when it is prepared, and waiting for DataLoaders.
        self._ready_since: int | None = None
        self._loading_ns = self._starting_ns = 0
        # Requests to DataLoaders, outermost first: preparing since, begun, and whether one starts.
        self._requests: list[tuple[int | None, int, bool] | None] = []
        self._evaluating: Activity | None = None
        self._is_eval = False
        self._cycle = self._stepped = 0
        self._first_begun: int | None = None
        self._last_step_end: int | None = None
        self._step_begun: int | None = None

    def now(self) -> int:
        """The clock, without the recorder's time."""
        return self.clock() - self.excluded_ns if self._noted_ns is None else self._noted_ns

    def note(self, method: Callable[[Any], object], argument: Any) -> None:
        """Call a method of this log as if now, before anything else is."""
        now = self.clock() - self.excluded_ns
        self._noted.append((method, argument, now))
        if now > self._count_after_ns:
            self.count_noted()

    def count_noted(self) -> None:
        noted, self._noted = self._noted, []
        for method, argument, self._noted_ns in noted:
            method(argument)
        self._noted_ns = None
        self._count_after_ns = self.clock() - self.excluded_ns + _COUNTED_EVERY_NS

    @contextmanager
    def excluding(self) -> Iterator[None]:
        """The time inside is the recorder's."""
        begun = self.clock()
        try:
            yield
        finally:
            self.excluded_ns += self.clock() - begun

    @property
    def is_idle(self) -> bool:
        return self._open is None

    # -- activities

    def begin(self, activity: Activity) -> None:
        """An activity begins; what runs inside another one is part of it."""
        if self._open is None:
            now = self.now()
            self._close_gap(activity, now)
            self._open, self._since = activity, now

    def end(self, activity: Activity) -> None:
        if self._open is activity:
            now = self.now()
            activity.own_ns += now - self._since
            if activity.file:
                activity.lengths.add(now - self._since)
            self.spent(activity, now - self._since)
            self._last, self._last_end, self._open = activity, now, None

    def begin_nested(self, activity: Activity) -> None:
        """Saving begins, which counts as such inside another activity, too."""
        if self._open is None:
            self.begin(activity)
        elif self._open.kind != "saving":
            self._nested_since = self.now()
            self._count(activity)

    def end_nested(self, activity: Activity) -> None:
        if self._open is activity:
            self.end(activity)
        elif self._open and self._open.kind != "saving" and self._nested_since:
            spent = self.now() - self._nested_since
            activity.own_ns += spent
            self.spent(activity, spent)
            self._since += spent
            self._nested_since = 0

    def spent(self, activity: Activity, spent_ns: int) -> None:
        """An activity has ended, or a part of it."""

    def prepared(self, activity: Activity, spent_ns: int, loading_ns: int) -> None:
        """An activity begins, and was prepared so long; that includes waiting for DataLoaders."""

    # -- training

    def begin_backward(self, _: object = None) -> None:
        self._begin_training(self.phases[-1].backward)

    def end_backward(self, _: object = None) -> None:
        self.end(self.phases[-1].backward)

    def begin_step(self, optimizer: SteppingOptimizer) -> None:
        activity = self.phases[-1].optimizer
        if self._stepping is optimizer:
            self.end(activity)  # its last step failed
        if self._begin_training(activity):
            self._stepping = optimizer

    def end_step(self, optimizer: SteppingOptimizer) -> None:
        if self._stepping is not optimizer:
            return
        self._stepping = None
        self.end(self.phases[-1].optimizer)
        self._count_step(optimizer, self._last_end)
        if self.due_ns is not None and self._last_end >= self.due_ns:
            self.on_due()

    def _begin_training(self, activity: Activity) -> bool:
        """Whether it is no part of another activity; a block in which a program trains is none."""
        if self._open and self._open.kind == "no_grad":
            self._last, self._last_end, self._open = self._open, self._since, None
        if self._open is not None:
            return False
        self.begin(activity)
        self.has_trained = True
        self._cycle += 1
        return True

    def _count_step(self, optimizer: SteppingOptimizer, now: int) -> None:
        steps = self._steps_of(optimizer)
        if not steps.count:
            self._begin_phase(steps)
        elif self._last_step_end is not None:
            self.phases[-1].step_lengths.add(now - self._last_step_end)
        if self._last_step_end is None and self._first_begun is not None:
            self.first_step_ns = now - self._first_begun
        steps.count += 1
        optimizer.count += 1
        self._stepped += 1
        steps.ended_ns = self._last_step_end = now
        self._step_begun = None

    def _steps_of(self, optimizer: SteppingOptimizer) -> OptimizerSteps:
        """Where the steps of an optimizer are counted.

        A program may make one for each step, client or task: that is no training of its own. If an
        earlier one steps again, it steps in turns with the one that went on with its count.
        """
        steps = optimizer.steps
        if steps is None:
            return self._new_steps(optimizer)
        if steps.latest is not optimizer:
            steps.count -= optimizer.count
            optimizer.steps = replace(steps, first=optimizer, latest=optimizer, count=optimizer.count)
            self.optimizers.append(optimizer.steps)
            return optimizer.steps
        return steps

    def _new_steps(self, optimizer: SteppingOptimizer) -> OptimizerSteps:
        for steps in reversed(self.optimizers[-_LATEST:]):
            if steps.latest.count < _FEW_STEPS and steps.first.does_as(optimizer):
                steps.latest, optimizer.steps = optimizer, steps
                return steps
        optimizer.steps = OptimizerSteps(optimizer, optimizer)
        self.optimizers.append(optimizer.steps)
        return optimizer.steps

    def _begin_phase(self, steps: OptimizerSteps) -> None:
        """An optimizer steps for the first time: what repeats now may be another training."""
        if len(self.optimizers) > 1 and len(self.phases) < _MOST_PHASES:
            self.phases.append(RunPhase())
            self._last = self.phases[-1].optimizer
            self.activities[self._last] = None
        steps.phase = self.phases[-1]
        steps.begun_ns = self._since if self._step_begun is None else self._step_begun

    # -- what comes before an activity

    def model_called(self) -> None:
        """A model is called to train: the first step has begun."""
        self.count_noted()
        if not self.has_trained and self._open is None:
            self._prepare()

    def begin_loading(self, starts: bool) -> None:
        """A DataLoader is asked for a batch; `starts` if it is the first, or the loader is new."""
        if self._open:
            self._open.reads_batches = True
            self._requests.append(None)
        else:
            before = self._ready_since
            self._prepare()
            self._requests.append((before, self.now(), starts))

    def end_loading(self, has_batch: bool) -> None:
        """It answered, or had no batch left."""
        request = self._requests.pop()
        if request is None:
            return
        before, begun, starts = request
        if not has_batch:
            self._ready_since = before
        elif starts:
            self._starting_ns += self.now() - begun
        else:
            self._loading_ns += self.now() - begun

    def mode_changed(self, activity: Activity | None) -> None:
        """A model is now in evaluation mode, by `activity`, or in training mode (None)."""
        self._is_eval = activity is not None
        if self._open:
            self._open.in_eval_mode |= self._is_eval
        elif activity:
            if self.has_trained:
                self._evaluating = activity
                self._prepare()
        elif self._evaluating:
            self.begin(evaluating := self._evaluating)
            self.end(evaluating)

    def tail(self) -> list[tuple[Activity | None, int]]:
        """The time since the last activity: what runs, None where that is unknown, and its ns."""
        now, ready = self.now(), self._ready_since
        if self._open:
            return [(self._open, now - self._since)]
        if self._evaluating and ready is not None:
            return [(None, ready - self._last_end), (self._evaluating, now - ready)]
        return [(None, now - self._last_end)]

    def _prepare(self) -> None:
        if self._ready_since is None:
            self._ready_since = self.now()

    def _close_gap(self, activity: Activity, now: int) -> None:
        ready = now if self._ready_since is None else self._ready_since
        gaps = self.gaps if self.has_trained else self.early_gaps
        lengths = gaps.get((self._last, activity))
        if lengths is None:
            lengths = gaps[self._last, activity] = DurationHistogram()
        lengths.add(ready - self._last_end)
        if self._ready_since is not None:
            activity.own_ns += now - ready
            self.prepared(activity, now - ready, self._loading_ns + self._starting_ns)
            activity.loading_ns += self._loading_ns
            activity.starting_ns += self._starting_ns
            self._ready_since, self._evaluating = None, None
            self._loading_ns = self._starting_ns = 0
        if self._step_begun is None and activity.kind in ("backward", "optimizer"):
            self._step_begun = ready
            self._first_begun = ready if self._first_begun is None else self._first_begun
        self._count(activity)

    def _count(self, activity: Activity) -> None:
        self.activities[activity] = None
        activity.count += 1
        activity.count_in_training += self.has_trained
        activity.in_eval_mode |= self._is_eval
        activity.runs += activity.last_cycle != self._cycle
        activity.last_cycle, activity.last_step = self._cycle, self._stepped
        if activity.first_step < 0:
            activity.first_step = self._stepped
