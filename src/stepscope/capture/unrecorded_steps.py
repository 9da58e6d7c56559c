"""Times steps after the recording, once they are as fast as they will be.

After a recording, caches, the allocator and the clock rate of the core settle, so steps become
shorter for a while. Then steps are timed in turns, with and without a watch on the calls of models.
The watch makes every module call longer, by 1 µs and more where caches are cold. What the steps
with it took longer is removed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepscope.capture.clock_readings import Reading, Timer
from stepscope.capture.timed_steps import FEWEST, MOST, TimedSteps, median

_RECENT = 5  # steps that are compared with as many before them
_STILL_FALLING = 0.98
_LONGEST_WAIT_NS, _MOST_WAITED = 1_000_000_000, 50
_BLOCK, _SKIPPED = 10, 2  # steps between two changes of the watch, and after one
_SHORTEST_NS, _LONGEST_NS, _MOST_TIMED = 500_000_000, 10_000_000_000, 100
_MOST_COST = 0.3  # of a part
_CALLED = "forward", "evaluation"
_MERGED = *_CALLED, "loss", "rest"  # parts that only a watch on calls tells apart
_OF_CPU = "cpu_ns", "cpu_p10_ns", "cpu_p90_ns"
_CLOCKS = "median_ns", "cpu_ns"


class UnrecordedSteps:
    """Waits, then times steps.

    Args:
        timer: reads the clocks.
        watch_calls: turns the watch on calls of models on or off; None if it must stay on.
    """

    def __init__(self, timer: Timer, watch_calls: Callable[[bool], None] | None) -> None:
        self._timer, self._watch_calls = timer, watch_calls
        self._begun: Reading | None = None
        self._waited, self._is_waiting = TimedSteps(timer), True
        self._watched, self._unwatched = TimedSteps(timer), TimedSteps(timer)
        self._in_block, self._watches = _SKIPPED, True

    def begin(self) -> None:
        """A step begins."""
        self._begun = self._timer.read()

    def end(self, now: Reading) -> None:
        """The step that has begun, if any, ends now."""
        begun, self._begun = self._begun, None
        if begun is None:
            return
        if self._is_waiting:
            self._wait(begun, now)
        else:
            self._time(begun, now)

    @property
    def is_complete(self) -> bool:
        """Whether enough steps have been timed."""
        timed_ns = self._watched.total_ns + self._unwatched.total_ns
        if not self._watched.is_complete:
            return False
        if not self._watch_calls or timed_ns > _LONGEST_NS:
            return True
        fewest = min(self._watched.count, self._unwatched.count)
        return fewest >= _MOST_TIMED or (fewest >= MOST and timed_ns > _SHORTEST_NS)

    def describe(self) -> dict[str, Any] | None:
        """As `TimedSteps.describe`, without the cost of watching calls."""
        steps, others = self._watched, self._unwatched
        if not steps.is_complete:  # the run has ended
            steps = self._waited
            steps.steps = [*steps.steps, *self._watched.steps][-MOST:]
        facts = steps.describe()
        if facts and others.count >= FEWEST:
            for clock, name in enumerate(_CLOCKS):
                cost_ns = _merged_ns(steps, clock) - _merged_ns(others, clock)
                _remove(facts, name, cost_ns)
        return facts

    def _wait(self, begun: Reading, now: Reading) -> None:
        steps = self._waited
        steps.add(begun, now)
        if steps.total_ns > _LONGEST_WAIT_NS or steps.count >= _MOST_WAITED or _is_steady(steps):
            self._is_waiting = False
            self._watched = TimedSteps(self._timer)

    def _time(self, begun: Reading, now: Reading) -> None:
        self._in_block += 1
        if self._in_block > _SKIPPED:
            (self._watched if self._watches else self._unwatched).add(begun, now)
        if self._in_block == _BLOCK + _SKIPPED and self._watch_calls:
            self._in_block = 0
            self._watches = not self._watches
            self._watch_calls(self._watches)


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


def _remove(facts: dict[str, Any], clock: str, cost_ns: int) -> None:
    """Take the cost of watching calls from the parts with calls and from the step."""
    called = sum(facts["parts"][name][clock] for name in _CALLED)
    removed = min(max(cost_ns, 0), round(_MOST_COST * called))
    for name in _CALLED:
        part = facts["parts"][name]
        part[clock] -= round(removed * part[clock] / max(called, 1))
    for name in ("median_ns", "p10_ns", "p90_ns") if clock == "median_ns" else _OF_CPU:
        facts[name] -= removed
