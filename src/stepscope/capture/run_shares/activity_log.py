"""Adds up what the training thread does over the whole run, in constant memory.

What happens in every step is only noted, with its time, and counted later, many steps at once: code
that runs once per step finds its data in no cache, and would take them from the program.

The run is a sequence of *activities* (backward passes, optimizer steps, blocks without gradients,
saving) and of gaps between them, in which forward passes and everything else run. Every activity
has its own time; the gaps are counted by which activity comes before and which after.
`run_shares` decides at the end what each of them was.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from stepscope.capture.run_shares.duration_histogram import DurationHistogram

_COUNTED_EVERY_NS = 100_000_000
_MOST_PHASES = 200
_FEW_STEPS = 10  # fewer are no training of their own
_LATEST = 8  # of them, a new optimizer may go on with one
_MOST_EARLIER = 64


@dataclass(eq=False)
class Activity:
    """What repeats at one place of the program.

    Attributes:
        kind: `start`, `backward`, `optimizer`, `no_grad`, `eval_mode` or `saving`.
        function, file, line: where the program begins it.
        purpose: `evaluation` or `rollout`, where the name of a calling function says so.
        own_ns: its time.
        loading_ns: how much of that the program waited for batches of a DataLoader.
        starting_ns: how much of that DataLoaders took to start and to give their first batch.
        count: how often it ran.
        count_in_training: how often after training had begun.
        runs: how often it ran without training in between, several repetitions as one.
        first_step, last_step: optimizer steps before its first and its last run.
        in_eval_mode: whether a model was in evaluation mode.
        reads_batches: whether a DataLoader was asked for batches inside it.
    """

    kind: str
    function: str = ""
    file: str = ""
    line: int = 0
    purpose: str | None = None
    own_ns: int = 0
    loading_ns: int = 0
    starting_ns: int = 0
    count: int = 0
    count_in_training: int = 0
    runs: int = 0
    first_step: int = -1
    last_step: int = -1
    in_eval_mode: bool = False
    reads_batches: bool = False
    last_cycle: int = -1


Gaps = dict[tuple[Activity, Activity], DurationHistogram]


@dataclass(eq=False)
class Phase:
    """The run from the first step of an optimizer until another one steps first.

    Attributes:
        gaps: gaps by the activities around them.
        step_lengths: time from one optimizer step to the next.
    """

    gaps: Gaps = field(default_factory=dict)
    step_lengths: DurationHistogram = field(default_factory=DurationHistogram)


@dataclass(eq=False)
class SteppingOptimizer:
    """An optimizer that steps.

    Attributes:
        name: its class.
        function, file, line: where the program calls its first step.
        number: counted from 1 in the order of first steps.
        steps: where its steps are counted; None before the first.
    """

    name: str
    function: str = ""
    file: str = ""
    line: int = 0
    number: int = 0
    steps: OptimizerSteps | None = None

    def does_as(self, other: SteppingOptimizer) -> bool:
        """Whether the program calls both at the same line."""
        mine, theirs = (self.name, self.file, self.line), (other.name, other.file, other.line)
        return mine == theirs


@dataclass(eq=False)
class OptimizerSteps:
    """The steps of one optimizer, or of several that follow each other at one line, a few each.

    Attributes:
        first, latest: the optimizers.
        own: how often the latest one stepped.
        earlier: how often some before it did, by their numbers.
        count: how often all of them did.
        begun_ns, ended_ns: when the first step began and the last one ended.
        phase: the run since the first step.
    """

    first: SteppingOptimizer
    latest: SteppingOptimizer
    own: int = 0
    earlier: dict[int, int] = field(default_factory=dict)
    count: int = 0
    begun_ns: int = 0
    ended_ns: int = 0
    phase: Phase = field(default_factory=Phase)

    def is_followed_by(self, new: SteppingOptimizer) -> bool:
        """Whether another one does the same after a few steps."""
        return self.own < _FEW_STEPS and self.first.does_as(new)

    def go_on_with(self, new: SteppingOptimizer) -> None:
        """Count the steps of another optimizer."""
        self.earlier[self.latest.number] = self.own
        if len(self.earlier) > _MOST_EARLIER:
            del self.earlier[next(iter(self.earlier))]
        self.latest, self.own, new.steps = new, 0, self

    def separate(self, earlier: SteppingOptimizer) -> OptimizerSteps:
        """The steps of an earlier optimizer that steps again: it steps in turns with the latest."""
        own = self.earlier.pop(earlier.number, 0)
        self.count -= own
        earlier.steps = replace(self, first=earlier, latest=earlier, own=own, earlier={}, count=own)
        return earlier.steps


@dataclass
class Waiting:
    """Time in DataLoaders since the last activity, which the next one needs."""

    loading_ns: int = 0
    starting_ns: int = 0


class Excluding:
    """A block whose time a log leaves out."""

    def __init__(self, log: ActivityLog) -> None:
        self._log = log

    def __enter__(self) -> None:
        self._begun = self._log.clock()

    def __exit__(self, *error: object) -> None:
        self._log.excluded_ns += self._log.clock() - self._begun


@dataclass
class ActivityLog:
    """The activities of one thread.

    Attributes:
        clock: in ns; a program may replace the one in `time` later.
        excluded_ns: time of the recorder, which does not count.
        torch_imported_ns: from the start of the run until torch was imported.
        optimizers: those that stepped, in the order of their first steps.
        phases: what repeats while these steps are at work, and before the first of them.
        early_gaps: gaps by the activities around them, before training begins.
        recorded_ns: when the steps that are kept began to be recorded.
        first_step_ns: the first step, in which compilers and allocators warm up.
        due_ns: when to call `on_due`, at the end of a step; None for never.
    """

    clock: Callable[[], int] = field(default_factory=lambda: time.perf_counter_ns)
    excluded_ns: int = 0
    torch_imported_ns: int | None = None
    optimizers: list[OptimizerSteps] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=lambda: [Phase()])
    early_gaps: Gaps = field(default_factory=dict)
    recorded_ns: int | None = None
    first_step_ns: int | None = None
    has_trained: bool = False
    due_ns: int | None = None
    on_due: Callable[[], None] = lambda: None
    start: Activity = field(default_factory=lambda: Activity("start"))
    backward: Activity = field(default_factory=lambda: Activity("backward"))
    optimizer: Activity = field(default_factory=lambda: Activity("optimizer"))

    def __post_init__(self) -> None:
        self.begun_ns = self.clock()
        self._noted: list[tuple[Callable[[Any], object], Any, int]] = []
        self._count_after_ns = self.begun_ns + _COUNTED_EVERY_NS
        self._noted_ns: int | None = None  # when what is counted now was noted
        self.activities = {self.start: None}  # in order
        self._last, self._last_end = self.start, self.begun_ns
        self._open: Activity | None = None
        self._since = self._nested_since = 0
        self._ready_since: int | None = None  # the next activity began to prepare here
        self._waiting = Waiting()
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
        """Call a method of this log, or one that calls it, as if now, before anything else is."""
        now = self.clock() - self.excluded_ns
        self._noted.append((method, argument, now))
        if now > self._count_after_ns:
            self.count_noted()

    def count_noted(self) -> None:
        """Make the calls that are noted."""
        noted, self._noted = self._noted, []
        for method, argument, self._noted_ns in noted:
            method(argument)
        self._noted_ns = None
        self._count_after_ns = self.clock() - self.excluded_ns + _COUNTED_EVERY_NS

    def excluding(self) -> Excluding:
        """The time inside is the recorder's."""
        return Excluding(self)

    @property
    def is_idle(self) -> bool:
        """Whether no activity runs."""
        return self._open is None

    # -- activities

    def begin(self, activity: Activity) -> None:
        """An activity begins; what runs inside another one is part of it."""
        if self._open is None:
            now = self.now()
            self._close_gap(activity, now)
            self._open, self._since = activity, now

    def end(self, activity: Activity) -> None:
        """An activity ends."""
        if self._open is activity:
            now = self.now()
            activity.own_ns += now - self._since
            self._last, self._last_end, self._open = activity, now, None

    def begin_training(self, activity: Activity) -> bool:
        """A backward pass or an optimizer begins; whether it is no part of another activity.

        A block without gradients in which a program trains is none.
        """
        if self._open and self._open.kind == "no_grad":
            self._last, self._last_end, self._open = self._open, self._since, None
        if self._open is not None:
            return False
        self.begin(activity)
        self.has_trained = True
        self._cycle += 1
        return True

    def end_step(self, optimizer: SteppingOptimizer) -> None:
        """An optimizer has stepped."""
        self.end(self.optimizer)
        now = self._last_end
        steps = self._steps_of(optimizer)
        if not steps.count:
            self._begin_phase(steps)
        elif self._last_step_end is not None:
            self.phases[-1].step_lengths.add(now - self._last_step_end)
        if self._last_step_end is None and self._first_begun is not None:
            self.first_step_ns = now - self._first_begun
        steps.count += 1
        steps.own += 1
        self._stepped += 1
        steps.ended_ns = self._last_step_end = now
        self._step_begun = None
        if self.due_ns is not None and now >= self.due_ns:
            self.on_due()

    def begin_nested(self, activity: Activity) -> None:
        """Saving begins, which counts as such inside another activity, too."""
        if self._open is None:
            self.begin(activity)
        elif self._open.kind != "saving":
            self._nested_since = self.now()
            self._count(activity)

    def end_nested(self, activity: Activity) -> None:
        """Saving ends."""
        if self._open is activity:
            self.end(activity)
        elif self._open and self._open.kind != "saving" and self._nested_since:
            spent = self.now() - self._nested_since
            activity.own_ns += spent
            self._since += spent
            self._nested_since = 0

    def _steps_of(self, optimizer: SteppingOptimizer) -> OptimizerSteps:
        """Where the steps of an optimizer are counted.

        A program may make one for each step, client or task: that is no training of its own.
        """
        steps = optimizer.steps
        if steps is None:
            steps = self._new_steps(optimizer)
        elif steps.latest is not optimizer:
            steps = steps.separate(optimizer)
            self.optimizers.append(steps)
        return steps

    def _new_steps(self, optimizer: SteppingOptimizer) -> OptimizerSteps:
        for steps in reversed(self.optimizers[-_LATEST:]):
            if steps.is_followed_by(optimizer):
                steps.go_on_with(optimizer)
                return steps
        optimizer.steps = OptimizerSteps(optimizer, optimizer)
        self.optimizers.append(optimizer.steps)
        return optimizer.steps

    def _begin_phase(self, steps: OptimizerSteps) -> None:
        """An optimizer steps for the first time: what repeats now may be another training."""
        if len(self.optimizers) > 1 and len(self.phases) < _MOST_PHASES:
            self.phases.append(Phase())
        steps.phase = self.phases[-1]
        steps.begun_ns = self._since if self._step_begun is None else self._step_begun

    # -- what comes before an activity

    def model_called(self) -> None:
        """A model is called to train: the first step has begun."""
        self.count_noted()
        if not self.has_trained and self._open is None:
            self._prepare()

    def begin_loading(self) -> int | None:
        """A DataLoader is asked for something; returns what `end_loading` needs."""
        before = self._ready_since
        self._prepare()
        return before

    def end_loading(
        self, before: int | None, spent_ns: int, *, starts: bool, has_batch: bool
    ) -> None:
        """It answered, or had no batch left."""
        if not has_batch:
            self._ready_since = before
        elif starts:
            self._waiting.starting_ns += spent_ns
        else:
            self._waiting.loading_ns += spent_ns

    def read_batch(self) -> None:
        """A DataLoader is asked for a batch inside an activity."""
        if self._open:
            self._open.reads_batches = True

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
        gaps = self.phases[-1].gaps if self.has_trained else self.early_gaps
        found = gaps.get((self._last, activity))
        if found is None:
            found = gaps[self._last, activity] = DurationHistogram()
        found.add(ready - self._last_end)
        if self._ready_since is not None:
            self._use_preparation(activity, now - self._ready_since)
        if self._step_begun is None and activity.kind in ("backward", "optimizer"):
            self._step_begun = ready
            self._first_begun = ready if self._first_begun is None else self._first_begun
        self._count(activity)

    def _use_preparation(self, activity: Activity, spent_ns: int) -> None:
        activity.own_ns += spent_ns
        activity.loading_ns += self._waiting.loading_ns
        activity.starting_ns += self._waiting.starting_ns
        self._ready_since, self._evaluating = None, None
        self._waiting.loading_ns = self._waiting.starting_ns = 0

    def _count(self, activity: Activity) -> None:
        self.activities[activity] = None
        activity.count += 1
        activity.count_in_training += self.has_trained
        activity.in_eval_mode |= self._is_eval
        activity.runs += activity.last_cycle != self._cycle
        activity.last_cycle, activity.last_step = self._cycle, self._stepped
        if activity.first_step < 0:
            activity.first_step = self._stepped
