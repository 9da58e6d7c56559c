"""In which steps something is slow: in all, in a stretch of them, or again and again."""

from __future__ import annotations

from math import comb
from typing import NamedTuple

import numpy as np

from stepscope.arrays import Floats, Ids, Mask

PERSISTENT = 0.8  # of the steps
_LEAST_STEPS = 3
_GAP = 2  # a step that is not slow outweighs so many that are
_STRETCH = 0.7  # of the slow steps: a stretch holds as many
_CHANCE = 0.01  # that anything in a healthy job is slow so often
_HICCUPS = 0.004  # of the steps of a healthy rank are slow, at least
_FEW = 0.25  # of the ranks: so many that are slow as often do not count as healthy ones
_LEAST_PERIOD = 3
_GROWTH = 2.0  # how much larger the excess is at the end than at the beginning
_FIT = 0.7  # of the variance: a growing excess grows steadily
_LEAST_FIT = 4
_BEGUN = 0.5  # of the fitted excess: a step with less is before it began


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
        if not self.recurs or self.number < _LEAST_PERIOD:
            return 0
        gaps = set(np.diff(np.flatnonzero(self.when)).tolist())
        return int(gaps.pop()) if len(gaps) == 1 else 0

    @property
    def number(self) -> int:
        """How many steps."""
        return int(self.when.sum())

    def overlap(self, other: SlowSteps) -> float:
        """Common steps as a share of the steps of both."""
        both, either = (self.when & other.when).sum(), (self.when | other.when).sum()
        return float(both / max(1, either))


def slow_steps(
    slow: Mask, least: int = _LEAST_STEPS, stretch: float = _STRETCH
) -> SlowSteps | None:
    """All steps, the stretch that holds most slow steps, or single ones; None for too few.

    Args:
        slow: whether it is slow, shape (steps,).
        least: how many steps are enough.
        stretch: the share of the slow steps that a stretch holds at least.

    Example:
        >>> slow_steps(np.array([0, 0, 1, 1, 1, 1, 0, 0], bool)).when.nonzero()[0].tolist()
        [2, 3, 4, 5]
    """
    if slow.mean() >= PERSISTENT:
        return SlowSteps(np.ones(len(slow), np.bool_))
    if slow.sum() < least:
        return None
    start, end = _densest(slow)
    inside = int(slow[start:end].sum())
    if inside < max(least, stretch * slow.sum()):
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
    result = np.zeros(len(slow), np.bool_)
    for row in np.flatnonzero(slow.any(axis=1)).tolist():
        steps = slow_steps(slow[row], least=1)
        result[row] = steps is not None and is_no_chance(slow, [row], steps, len(slow))
    return result


def is_no_chance(slow: Mask, rows: list[int], steps: SlowSteps, candidates: int) -> bool:
    """Whether ranks are slow together more often than ranks that are as slow as the others.

    Args:
        slow: whether a rank is slow in a step, shape (ranks, steps).
        rows: the ranks that are slow in the same steps, by position.
        steps: in which.
        candidates: how many such groups of ranks there are in the job.
    """
    if steps.when.all():
        return True
    counts = slow.sum(axis=1)
    count = int(np.median(slow[rows][:, steps.when].sum(axis=1)))
    span = len(steps.when) if steps.recurs else steps.number
    places = len(steps.when) - span + 1
    chance = places * _at_least(count, span, _usual_rate(counts, rows, len(steps.when)))
    return chance ** len(rows) * candidates < _CHANCE


def is_rare(count: int, steps: int, others: Ids, candidates: int) -> bool:
    """Whether a rank is slow in more steps than others would be by chance.

    Args:
        count: in how many steps it is slow.
        steps: how many there are.
        others: in how many steps each of the others is slow.
        candidates: how many ranks could be slow as often.
    """
    rate = (others.sum() + 0.5) / (len(others) * steps + 1)
    return _at_least(count, steps, min(float(rate), 1.0)) * candidates < _CHANCE


def _usual_rate(counts: Ids, rows: list[int], steps: int) -> float:
    """In how many of its steps another rank is slow; a few that are slow as often do not count."""
    others = np.ones(len(counts), np.bool_)
    others[rows] = False
    alike = others & (counts >= counts[rows].max())
    if alike.mean() <= _FEW:
        others &= ~alike
    rate = (counts[others].sum() + 0.5) / (others.sum() * steps + 1)
    return min(max(float(rate), _HICCUPS), 1.0)


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
    fitted = base + slope * np.arange(at[0])
    begun = (fitted > -slope / 4) & (excess[: at[0]] > _BEGUN * fitted - slope / 4)
    begin = int(np.flatnonzero(~begun).max(initial=-1)) + 1
    when[begin : at[0]] = True
    return SlowSteps(when, grows=True)


def steps_in_words(steps: tuple[int, int] | None, count: int = 0, period: int = 0) -> str:
    """`every step`, `steps 20–40`, `every 10th step (3–43)`, or `7 of the steps 3–45`."""
    if steps is None:
        return "every step"
    if steps[0] == steps[1]:
        return f"step {steps[0]}"
    span = f"{steps[0]}–{steps[1]}"
    if period:
        return f"every {_ordinal(period)} step ({span})"
    return f"{count} of the steps {span}" if count else f"steps {span}"


def _ordinal(number: int) -> str:
    """`2nd`, `3rd`, `10th`."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number % 100 in (11, 12, 13) else ending}"
