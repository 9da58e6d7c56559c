"""Lengths of consecutive steps and their parts, recorded or not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepscope.capture.clock_readings import Reading, Timer, queued_ns

MOST = 20
FEWEST = 3


class TimedSteps:
    """Reads the clocks of a timer where steps begin and end.

    `steps` has the clocks at the begin and end of each.
    """

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._begun: Reading | None = None
        self.steps: list[tuple[Reading, Reading]] = []
        self._queued_before = queued_ns()

    def begin(self) -> None:
        """A step begins."""
        self._begun = self._timer.read()

    def end(self, now: Reading | None = None) -> None:
        """The step that has begun, if any, ends, by default now."""
        if self._begun:
            self.steps.append((self._begun, now or self._timer.read()))
            self._begun = None

    def follow(self) -> None:
        """A step ends and the next begins, without a pause for the recorder."""
        now = self._timer.read()
        if self._begun:
            self.steps.append((self._begun, now))
        self._begun = now

    def add(self, begun: Reading, ended: Reading) -> None:
        """A step that was timed before."""
        self.steps.append((begun, ended))

    @property
    def count(self) -> int:
        """How many steps have been timed."""
        return len(self.steps)

    @property
    def total_ns(self) -> int:
        """Their elapsed time, ns."""
        return sum(after.elapsed_ns - before.elapsed_ns for before, after in self.steps)

    @property
    def is_complete(self) -> bool:
        """Whether enough steps have been timed."""
        return len(self.steps) >= MOST

    def describe(self) -> dict[str, Any] | None:
        """Their count, and percentiles of their times, ns; None if no step was timed.

        `median_ns`, `p10_ns` and `p90_ns` are elapsed time, `cpu_ns` (with percentiles) is CPU time
        of the thread that trains and `process_cpu_ns` of all threads (medians); `parts` has both
        medians and percentiles of elapsed time by part, and `recurring_ns`, its mean where the
        longest counts as the next longest.
        `page_faults` is the median of those that the process had, None if they are not counted.
        `queued_ns` is how long that thread waited for a core until now, of `elapsed_ns` in all.
        Without parts, other threads do the work, and what that thread took is None.
        """
        if not self.steps:
            return None
        names = list(self.steps[0][0].parts)
        elapsed = sorted(after.elapsed_ns - before.elapsed_ns for before, after in self.steps)
        cpu = sorted(after.cpu_ns - before.cpu_ns for before, after in self.steps)
        before, now = self._queued_before, queued_ns()
        return {
            "count": len(self.steps),
            "median_ns": _percentile(elapsed, 0.5),
            "p10_ns": _percentile(elapsed, 0.1),
            "p90_ns": _percentile(elapsed, 0.9),
            "cpu_ns": _percentile(cpu, 0.5) if names else None,
            "cpu_p10_ns": _percentile(cpu, 0.1) if names else None,
            "cpu_p90_ns": _percentile(cpu, 0.9) if names else None,
            "process_cpu_ns": median([b.process_cpu_ns - a.process_cpu_ns for a, b in self.steps]),
            "page_faults": _page_faults(self.steps),
            "elapsed_ns": self.steps[-1][1].elapsed_ns - self.steps[0][0].elapsed_ns,
            "queued_ns": now - before if names and before is not None and now is not None else None,
            "parts": {name: _part(self.steps, name) for name in names},
        }


def _part(steps: Sequence[tuple[Reading, Reading]], part: str) -> dict[str, int]:
    elapsed, cpu = (
        sorted(after.parts[part][clock] - before.parts[part][clock] for before, after in steps)
        for clock in (0, 1)
    )
    return {
        "median_ns": _percentile(elapsed, 0.5),
        "p10_ns": _percentile(elapsed, 0.1),
        "p90_ns": _percentile(elapsed, 0.9),
        "recurring_ns": _recurring(elapsed),
        "cpu_ns": _percentile(cpu, 0.5),
    }


def _recurring(ordered: Sequence[int]) -> int:
    """The mean, where the longest counts as the next longest: it may be the start of an epoch."""
    return round(sum([*ordered[:-1], ordered[-2:][0]]) / len(ordered))


def _page_faults(steps: Sequence[tuple[Reading, Reading]]) -> int | None:
    found = [
        after.page_faults - before.page_faults
        for before, after in steps
        if before.page_faults is not None and after.page_faults is not None
    ]
    return median(found) if found else None


def median(times: Sequence[int]) -> int:
    """One of the middle values."""
    return _percentile(sorted(times), 0.5)


def _percentile(ordered: Sequence[int], share: float) -> int:
    return ordered[round(share * (len(ordered) - 1))]
