"""In which steps something is slow: in all, in a stretch of them, or again and again."""

from __future__ import annotations

from math import comb
from typing import NamedTuple

import numpy as np

from stepscope.arrays import Floats, Mask

PERSISTENT = 0.8  # of the steps
_LEAST_STEPS = 3
_GAP = 2  # a step that is not slow outweighs so many that are
_STRETCH = 0.7  # of the slow steps: a stretch holds as many
_CHANCE = 0.01  # that a rank of a healthy job is slow so often
_HICCUPS = 0.25  # slow steps of a healthy rank, at least
_GROWTH = 2.0  # how much larger the excess is at the end than at the beginning
_FIT = 0.7  # of the variance: a growing excess grows steadily
_LEAST_FIT = 6


class SlowSteps(NamedTuple):
    """Steps in which something is slow.

    Attributes:
        when: which, shape (steps,).
        recurs: whether they are single steps again and again, not a stretch or all.
        grows: whether what is slow takes longer from step to step.
    """

    when: Mask
    recurs: bool = False
    grows: bool = False

    def span(self, steps: list[int]) -> tuple[int, int] | None:
        """The first and the last of them; None for all steps."""
        positions = np.flatnonzero(self.when).tolist()
        return None if self.when.all() else (steps[positions[0]], steps[positions[-1]])

    @property
    def period(self) -> int:
        """Every how many steps it recurs; 0 where that varies."""
        gaps = set(np.diff(np.flatnonzero(self.when)).tolist()) if self.recurs else set()
        return int(gaps.pop()) if len(gaps) == 1 else 0

    @property
    def number(self) -> int:
        """How many steps."""
        return int(self.when.sum())

    def overlap(self, other: SlowSteps) -> float:
        """Common steps as a share of the steps of both."""
        both, either = (self.when & other.when).sum(), (self.when | other.when).sum()
        return float(both / max(1, either))


def slow_steps(slow: Mask) -> SlowSteps | None:
    """All steps, the stretch that holds most slow steps, or single ones; None for one or two.

    Args:
        slow: whether it is slow, shape (steps,).

    Example:
        >>> slow_steps(np.array([0, 0, 1, 1, 1, 1, 0, 0], bool)).when.nonzero()[0].tolist()
        [2, 3, 4, 5]
    """
    if slow.mean() >= PERSISTENT:
        return SlowSteps(np.ones(len(slow), np.bool_))
    if slow.sum() < _LEAST_STEPS:
        return None
    start, end = _densest(slow)
    inside = int(slow[start:end].sum())
    if inside < max(_LEAST_STEPS, _STRETCH * slow.sum()):
        return SlowSteps(slow.copy(), recurs=True)
    when = np.zeros(len(slow), np.bool_)
    when[start:end] = True
    return SlowSteps(when)


def _densest(slow: Mask) -> tuple[int, int]:
    """The stretch with most slow steps, a few others between them allowed."""
    total = np.concatenate([[0], np.cumsum(np.where(slow, 1, -_GAP))])
    lowest = np.minimum.accumulate(total)
    end = int((total - lowest).argmax())
    start = int(np.flatnonzero(total[: end + 1] == lowest[end])[-1])
    return start, end


def beyond_chance(slow: Mask) -> Mask:
    """Which ranks are slow in more steps than a rank of a job of equal ranks would be.

    Args:
        slow: whether a rank is slow in a step, shape (ranks, steps).
    """
    ranks, steps = slow.shape
    counts = slow.sum(axis=1)
    rate = min(max(float(np.percentile(counts, 75)), _HICCUPS) / steps, 1.0)
    tail = np.array([_at_least(count, steps, rate) for count in range(steps + 1)])
    result: Mask = tail[counts] * ranks < _CHANCE
    return result


def _at_least(count: int, steps: int, rate: float) -> float:
    """The chance of `count` or more of `steps`, each of a probability of `rate`."""
    return sum(
        comb(steps, number) * rate**number * (1 - rate) ** (steps - number)
        for number in range(count, steps + 1)
    )


def grown(steps: SlowSteps, excess: Floats) -> SlowSteps:
    """The steps, from where an excess begins if it grows steadily, as when a device heats up.

    Args:
        steps: in which something is slow.
        excess: by how much, shape (steps,).
    """
    at = np.flatnonzero(steps.when)
    if steps.recurs or len(at) < _LEAST_FIT:
        return steps
    slope, base = np.polyfit(at, excess[at], 1)
    rest = excess[at] - (base + slope * at)
    explained = 1 - float(rest.var() / max(excess[at].var(), 1e-12))
    first, last = base + slope * at[0], base + slope * at[-1]
    if not (slope > 0 and explained > _FIT and last > _GROWTH * max(first, 0.0)):
        return steps
    when = steps.when.copy()
    when[max(int(np.ceil(-base / slope)), 0) : at[0]] = True
    return SlowSteps(when, grows=True)


def steps_in_words(steps: tuple[int, int] | None, count: int = 0, period: int = 0) -> str:
    """`every step`, `steps 20–40`, `every 10th step (3–43)`, or `7 of the steps 3–45`."""
    if steps is None:
        return "every step"
    span = f"{steps[0]}–{steps[1]}"
    if period:
        return f"every {_ordinal(period)} step ({span})"
    return f"{count} of the steps {span}" if count else f"steps {span}"


def _ordinal(number: int) -> str:
    """`2nd`, `3rd`, `10th`."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number % 100 in (11, 12, 13) else ending}"
