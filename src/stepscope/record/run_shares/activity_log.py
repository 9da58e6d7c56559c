"""Adds up what the training thread does over the whole run, in constant memory.

What happens in every step is only noted, with its time, and counted later, many steps at once: code
that runs once per step finds its data in no cache, and would take them from the program.

The run is a sequence of *activities* (backward passes, optimizer steps, blocks without gradients,
saving) and of gaps between them, in which forward passes and everything else run. Every activity
has its own time; the gaps are counted by which activity comes before and which after.
`run_shares` adds them up at the end.
"""

import math
from collections import defaultdict
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
# Counted whenever the run is twice as long, then every second; chosen: every 100 ms, with cold caches
# each time, takes 0.4 % of steps of 20 ms.
_LEAST_NS, _MOST_NS = 100_000_000, 1_000_000_000  # 0.1 and 1 s between two counts
_MOST_TRAININGS = 200  # with activities of their own: memory must not grow with the run
_FEW_STEPS = 10  # fewer are no training of their own
_MOST_NESTED = 64  # durations that a later one may contain
_LATEST = 8  # of them, a new optimizer may go on with one


class Durations:
    """Count and sum of durations by length, in bins 9 % wide."""

    def __init__(self) -> None:
        self._bins: dict[int, tuple[int, int]] = {}
        self.total_ns = 0

    def add(self, duration_ns: int) -> None:
        key = int(math.log2(duration_ns) * _BINS_PER_OCTAVE) if duration_ns > 0 else -1
        count, total_ns = self._bins.get(key, (0, 0))
        self._bins[key] = count + 1, total_ns + duration_ns
        self.total_ns += duration_ns

    @property
    def count(self) -> int:
        return sum(count for count, _ in self._bins.values())

    def median_ns(self) -> int:
        """The mean of the bin that holds the median; 0 if nothing was counted."""
        left = self.count / 2
        for _, (count, total_ns) in sorted(self._bins.items()):
            left -= count
            if left <= 0:
                return total_ns // count
        return 0

    def cut_at(self, most_ns: int, to_ns: int) -> int:
        """The sum where each duration longer than `most_ns` counts as `to_ns`."""
        bins = self._bins.values()
        return sum(count * to_ns if total > count * most_ns else total for count, total in bins)


class NestedDurations:
    """Finds the part of each duration that no earlier one covers, so that the parts add up."""

    def __init__(self) -> None:
        self._ended: list[tuple[float, float]] = []

    def own(self, now: float, duration: float) -> float:
        """The part of a duration that ends now which is not within an earlier one."""
        begin, inside = now - duration, 0.0
        while self._ended and self._ended[-1][0] >= begin:
            inside += self._ended.pop()[1]
        self._ended = [*self._ended[1 - _MOST_NESTED :], (begin, duration)]
        return max(duration - inside, 0.0)


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
    lengths: Durations = field(default_factory=Durations)  # of blocks and of saving
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
        return self.count_in_training > 1 and self.runs > _USUAL * (self.last_step - self.first_step + 1)


@dataclass(eq=False)
class SteppingOptimizer:
    """An optimizer that steps."""

    name: str  # its class
    place: Activity  # where the program calls its first step
    number: int = 0  # counted from 1 in the order of first steps
    count: int = 0  # how often it stepped
    steps: "OptimizerSteps | None" = None  # where its steps are counted; None before the first

    def does_as(self, other: "SteppingOptimizer") -> bool:
        """Whether the program calls both at the same line."""
        here, there = self.place, other.place
        return (self.name, here.file, here.line) == (other.name, there.file, there.line)


@dataclass(eq=False)
class OptimizerSteps:
    """The steps of one optimizer, or of several that follow each other at one line, a few each.

    What trains after one of them has activities of its own, so that its gaps are counted apart.
    """

    first: SteppingOptimizer  # the optimizers
    latest: SteppingOptimizer
    backward: Activity
    optimizer: Activity
    begun_ns: int = 0  # when the first step began and the last one ended
    ended_ns: int = 0
    count: int = 0  # how often all of them stepped
    lengths: Durations = field(default_factory=Durations)  # since the step of any optimizer before


Gap = tuple[Activity, Activity, bool]  # between these two, and whether training had begun


@dataclass
class ActivityLog:
    """The activities of one thread."""

    # In ns; a program may replace the one in `time` later.
    clock: Callable[[], int] = field(default_factory=lambda: time.perf_counter_ns)
    excluded_ns: int = 0  # time of the recorder, which does not count
    torch_imported_ns: int | None = None  # from the start of the run until torch was imported
    # Those that stepped, in the order of their first steps.
    optimizers: list[OptimizerSteps] = field(default_factory=list)
    gaps: dict[Gap, Durations] = field(default_factory=lambda: defaultdict(Durations))
    recorded_ns: int | None = None  # when the steps that are kept began to be recorded
    first_step_ns: int | None = None  # the first step, in which compilers and allocators warm up
    has_trained: bool = False
    due_ns: int | None = None  # when to call `on_due`, at the end of a step; None for never
    on_due: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.begun_ns = self.clock()
        self._noted: list[tuple[Callable[[Any], object], Any, int]] = []
        self._count_after_ns = self.begun_ns + _LEAST_NS
        self._noted_ns: int | None = None  # when what is counted now was noted
        self._last, self._last_end = Activity("start"), self.begun_ns
        self.activities = {self._last: None}  # in order
        self._open: list[Activity] = []  # outermost first
        self._since: list[int] = []  # when they began, plus what is no time of theirs
        self._backward, self._optimizer = Activity("backward"), Activity("optimizer")  # those of now
        self._stepping: SteppingOptimizer | None = None
        # What the next activity needs: since when it is prepared, and waiting for DataLoaders.
        self._ready_since: int | None = None
        self._loading_ns = self._starting_ns = 0
        self._evaluating: Activity | None = None
        self._is_eval = False
        self._cycle = self._stepped = 0
        self._step_begun: int | None = None
        self._last_step_end = 0

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
        noted, self._noted = iter(self._noted), []
        whole = min(len(self._open), len(self._since))  # one more had begun or ended as a handler raised
        del self._open[whole:], self._since[whole:]
        try:
            for method, argument, self._noted_ns in noted:
                method(argument)
        finally:  # a signal handler of the program may raise anywhere
            self._noted_ns = None
            self._noted[:0] = noted
        now = self.clock() - self.excluded_ns
        self._count_after_ns = now + min(max(now - self.begun_ns, _LEAST_NS), _MOST_NS)

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
        return not self._open

    # -- activities

    def begin(self, activity: Activity) -> bool:
        """Whether an activity begins; what runs inside another one is part of it, except for saving."""
        now = self.now()
        if not self._open:
            self._close_gap(activity, now)
        elif activity.kind != "saving" or self._open[-1].kind == "saving":
            return False
        self._count(activity)
        self._open.append(activity)
        self._since.append(now)
        return True

    def end(self, activity: Activity) -> None:
        if not self._open or self._open[-1] is not activity:
            return
        now = self.now()
        spent = now - self._since.pop()
        self._open.pop()
        activity.own_ns += spent
        if activity.file:
            activity.lengths.add(spent)
        self.spent(activity, spent)
        if self._since:
            self._since[-1] += spent
        else:
            self._last, self._last_end = activity, now

    def spent(self, activity: Activity, spent_ns: int) -> None:
        """An activity has ended."""

    def prepared(self, activity: Activity, spent_ns: int, loading_ns: int) -> None:
        """An activity begins, and was prepared so long; that includes waiting for DataLoaders."""

    # -- training

    def begin_backward(self, _: object = None) -> None:
        self._begin_training(self._backward)

    def end_backward(self, _: object = None) -> None:
        self.end(self._backward)

    def begin_step(self, optimizer: SteppingOptimizer) -> None:
        if self._stepping is optimizer:
            self.end(self._optimizer)  # its last step failed
        if self._begin_training(self._optimizer):
            self._stepping = optimizer

    def end_step(self, optimizer: SteppingOptimizer) -> None:
        if self._stepping is not optimizer:
            return
        self._stepping = None
        self.end(self._optimizer)
        self._count_step(optimizer, self._last_end)
        if self.due_ns is not None and self._last_end >= self.due_ns:
            self.on_due()

    def _begin_training(self, activity: Activity) -> bool:
        """Whether it is no part of another activity; a block in which a program trains is none."""
        if self._open and self._open[-1].kind == "no_grad":
            self._last, self._last_end = self._open.pop(), self._since.pop()
        if self._open:
            return False
        self.begin(activity)
        self.has_trained = True
        self._cycle += 1
        return True

    def _count_step(self, optimizer: SteppingOptimizer, now: int) -> None:
        begun = now if self._step_begun is None else self._step_begun
        if not self.optimizers:
            self.first_step_ns = now - begun
        steps = self._steps_of(optimizer)
        if steps.count:
            steps.lengths.add(now - self._last_step_end)
        else:
            steps.begun_ns = begun
        steps.count += 1
        optimizer.count += 1
        self._stepped += 1
        steps.ended_ns = self._last_step_end = now
        self._step_begun = None
        self._backward, self._optimizer = steps.backward, steps.optimizer
        self._last = steps.optimizer

    def _steps_of(self, optimizer: SteppingOptimizer) -> OptimizerSteps:
        """Where the steps of an optimizer are counted.

        A program may make one for each step, client or task: that is no training of its own, nor is one of
        very many. If an earlier one steps again, it steps in turns with the one that went on with its count.
        """
        steps = optimizer.steps
        if steps and steps.latest is optimizer:
            return steps
        if steps:
            steps.count -= optimizer.count
            optimizer.steps = replace(
                steps, first=optimizer, latest=optimizer, count=optimizer.count, lengths=Durations()
            )
        else:
            is_full = len(self.optimizers) >= _MOST_TRAININGS
            for steps in reversed(self.optimizers[-_LATEST:]):
                is_short = steps.latest.count < _FEW_STEPS
                if (is_short or is_full) and steps.first.does_as(optimizer):
                    steps.latest, optimizer.steps = optimizer, steps
                    return steps
            optimizer.steps = OptimizerSteps(optimizer, optimizer, *self._activities_of_next())
        self.optimizers.append(optimizer.steps)
        return optimizer.steps

    def _activities_of_next(self) -> tuple[Activity, Activity]:
        """What repeats after a new optimizer has stepped may be another training."""
        if 0 < len(self.optimizers) < _MOST_TRAININGS:
            backward, optimizer = Activity("backward"), Activity("optimizer")
            self.activities |= {backward: None, optimizer: None}
            return backward, optimizer
        return self._backward, self._optimizer

    # -- what comes before an activity

    def model_called(self) -> None:
        """A model is called to train: the first step has begun."""
        self.count_noted()
        if not self.has_trained and not self._open:
            self._prepare(self.now())

    def loaded(self, request: tuple[int, bool]) -> None:
        """A DataLoader has answered: when it was asked, and whether that started it."""
        begun, starts = request
        if self._open:
            self._open[-1].reads_batches = True
            return
        begun = max(begun, self._last_end)
        self._prepare(begun)
        if starts:
            self._starting_ns += self.now() - begun
        else:
            self._loading_ns += self.now() - begun

    def mode_changed(self, activity: Activity | None) -> None:
        """A model is now in evaluation mode, by `activity`, or in training mode (None)."""
        self._is_eval = activity is not None
        if self._open:
            self._open[-1].in_eval_mode |= self._is_eval
        elif activity:
            if self.has_trained:
                self._evaluating = activity
                self._prepare(self.now())
        elif self._evaluating:
            self.begin(evaluating := self._evaluating)
            self.end(evaluating)

    def tail(self) -> list[tuple[Activity | None, int]]:
        """The time since the last activity: what runs, None where that is unknown, and its ns."""
        now, ready = self.now(), self._ready_since
        if self._open:
            return [(self._open[0], now - self._since[0])]
        if self._evaluating and ready is not None:
            return [(None, ready - self._last_end), (self._evaluating, now - ready)]
        return [(None, now - self._last_end)]

    def _prepare(self, since_ns: int) -> None:
        if self._ready_since is None:
            self._ready_since = since_ns

    def _close_gap(self, activity: Activity, now: int) -> None:
        ready = now if self._ready_since is None else self._ready_since
        self.gaps[self._last, activity, self.has_trained].add(ready - self._last_end)
        if self._ready_since is not None:
            activity.own_ns += now - ready
            self.prepared(activity, now - ready, self._loading_ns + self._starting_ns)
            activity.loading_ns += self._loading_ns
            activity.starting_ns += self._starting_ns
            self._ready_since, self._evaluating = None, None
            self._loading_ns = self._starting_ns = 0
        if self._step_begun is None and activity.kind in ("backward", "optimizer"):
            self._step_begun = ready

    def _count(self, activity: Activity) -> None:
        self.activities[activity] = None
        activity.count += 1
        activity.count_in_training += self.has_trained
        activity.in_eval_mode |= self._is_eval
        activity.runs += activity.last_cycle != self._cycle
        activity.last_cycle, activity.last_step = self._cycle, self._stepped
        if activity.first_step < 0:
            activity.first_step = self._stepped
