"""Times steps after the recording, once they are as fast as they will be.

After a recording, caches, the allocator and the clock rate of the core settle, so steps become
shorter for a while. Then blocks of steps are timed in turns, in more and less detail: with parts
and a watch on the calls of models, with parts only, and as a whole. The watch makes every module
call longer, by 1 µs and more where caches are cold; timing the parts takes caches from what runs
next. What steps in more detail took longer than those in less is removed from the parts.

At the end of a step the clocks are read, and nothing else is done until a block is over: whatever
runs between steps takes caches from the program, and made its steps 10 to 15 % longer.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from itertools import pairwise
from typing import Any

from stepscope.capture.clock_readings import StepMarker
from stepscope.capture.timed_steps import FEWEST, MOST, TimedSteps, median

_RECENT = 5  # steps that are compared with as many before them
_STILL_FALLING = 0.98
_LONG_STEP_NS = 20_000_000
_LONGEST_WAIT_NS, _MOST_WAITED = 1_000_000_000, 50
_BLOCK, _SKIPPED = 10, 2  # steps between two changes of the detail, and after one
_SHORTEST_NS, _LONGEST_NS, _MOST_TIMED = 500_000_000, 10_000_000_000, 60
_MOST_COST = 0.3  # of a part
_CALLED = "forward", "evaluation"
_MERGED = *_CALLED, "loss", "rest"  # parts that only a watch on calls tells apart
_OF_STEP = ("median_ns", "p10_ns", "p90_ns"), ("cpu_ns", "cpu_p10_ns", "cpu_p90_ns")
_OF_PART = ("median_ns", "p10_ns", "p90_ns", "recurring_ns"), ("cpu_ns",)


class Detail(IntEnum):
    """What is timed of a step."""

    STEP = 0
    PARTS = 1
    CALLS = 2  # parts, and which of them are calls of models


class UnrecordedSteps:
    """Waits, then times steps.

    Args:
        timer: reads the clocks where steps end.
        time_in: changes the detail; None if everything must be timed.
    """

    def __init__(self, timer: StepMarker, time_in: Callable[[Detail], None] | None) -> None:
        self._timer, self._time_in = timer, time_in
        self._waited, self._is_waiting = TimedSteps(timer), True
        self._timed = {detail: TimedSteps(timer) for detail in Detail}
        self._detail = Detail.CALLS
        self._left = 1  # steps in this block, of which some are skipped
        self._skipped = 0
        self.is_complete = False  # whether enough steps have been timed

    def begin(self) -> None:
        """A step begins."""
        self._timer.mark()

    def step_ended(self) -> None:
        """A step ends and the next begins."""
        self._timer.mark()
        self._left -= 1
        if not self._left:
            self._collect()
            self._plan_block()
            self.begin()

    def describe(self) -> dict[str, Any] | None:
        """As `TimedSteps.describe`, without the cost of timing parts and watching calls."""
        self._collect()
        steps = self._timed[Detail.CALLS]
        if not steps.is_complete:  # the run has ended
            steps = self._waited
            steps.steps = [*steps.steps, *self._timed[Detail.CALLS].steps][-MOST:]
        facts = steps.describe()
        if facts:
            self._remove_cost(facts, steps)
        return facts

    def _collect(self) -> None:
        """Take the steps of the block so far."""
        steps = self._waited if self._is_waiting else self._timed[self._detail]
        for begun, ended in list(pairwise(self._timer.readings()))[self._skipped :]:
            steps.add(begun, ended)

    def _plan_block(self) -> None:
        """A block of steps is over: what the next one is for."""
        self._skipped = 0
        if self._is_waiting:
            self._is_waiting = not _has_settled(self._waited)
            self._left = _until_settled(self._waited) if self._is_waiting else _BLOCK
        elif self._time_in:
            self._detail = Detail((self._detail - 1) % len(Detail))
            self._time_in(self._detail)
            self._left, self._skipped = _BLOCK + _SKIPPED, _SKIPPED
        else:
            self._left = _BLOCK
        self.is_complete = self._has_enough()

    def _has_enough(self) -> bool:
        timed_ns = sum(steps.total_ns for steps in self._timed.values())
        if not self._timed[Detail.CALLS].is_complete:
            return False
        if not self._time_in or timed_ns > _LONGEST_NS:
            return True
        fewest = min(steps.count for steps in self._timed.values())
        return fewest >= _MOST_TIMED or (fewest >= MOST and timed_ns > _SHORTEST_NS)

    def _remove_cost(self, facts: dict[str, Any], watched: TimedSteps) -> None:
        parts, whole = self._timed[Detail.PARTS], self._timed[Detail.STEP]
        for clock in range(2):
            if parts.count >= FEWEST:
                cost_ns = _merged_ns(watched, clock) - _merged_ns(parts, clock)
                _remove_from_calls(facts, clock, cost_ns)
            if parts.count >= FEWEST and whole.count >= FEWEST:
                kept = _step_ns(whole, clock) / max(_step_ns(parts, clock), 1)
                _shorten(facts, clock, min(max(kept, 1 - _MOST_COST), 1.0))


def _has_settled(waited: TimedSteps) -> bool:
    return waited.total_ns > _LONGEST_WAIT_NS or waited.count >= _MOST_WAITED or _is_steady(waited)


def _until_settled(waited: TimedSteps) -> int:
    """After how many steps to look again."""
    return 1 if waited.total_ns > waited.count * _LONG_STEP_NS else _RECENT


def _is_steady(steps: TimedSteps) -> bool:
    """Whether the last steps are not shorter than those before them."""
    lengths = [after.elapsed_ns - before.elapsed_ns for before, after in steps.steps]
    recent, before = lengths[-_RECENT:], lengths[-2 * _RECENT : -_RECENT]
    return len(before) == _RECENT and median(recent) >= _STILL_FALLING * median(before)


def _merged_ns(steps: TimedSteps, clock: int) -> int:
    """The median time per step in parts that only a watch on calls tells apart, ns."""
    return median(
        [sum(after.parts[name][clock] - before.parts[name][clock] for name in _MERGED)
         for before, after in steps.steps]
    )  # fmt: skip


def _step_ns(steps: TimedSteps, clock: int) -> int:
    """The median time per step, ns."""
    if clock:
        return median([after.cpu_ns - before.cpu_ns for before, after in steps.steps])
    return median([after.elapsed_ns - before.elapsed_ns for before, after in steps.steps])


def _remove_from_calls(facts: dict[str, Any], clock: int, cost_ns: int) -> None:
    """Take the cost of watching calls from the parts with calls and from the step."""
    middle = _OF_PART[clock][0]
    called = sum(facts["parts"][name][middle] for name in _CALLED)
    removed = min(max(cost_ns, 0), round(_MOST_COST * called))
    for name in _CALLED:
        part = facts["parts"][name]
        share = part[middle] / max(called, 1)
        for key in _OF_PART[clock]:
            part[key] = max(part[key] - round(removed * share), 0)
    for key in _OF_STEP[clock]:  # a short step among long ones cannot have cost as much
        facts[key] -= min(removed, round(_MOST_COST * facts[key]))


def _shorten(facts: dict[str, Any], clock: int, kept: float) -> None:
    """Keep this share of the step and of each of its parts."""
    for key in _OF_STEP[clock]:
        facts[key] = round(kept * facts[key])
    for part in facts["parts"].values():
        for key in _OF_PART[clock]:
            part[key] = round(kept * part[key])
