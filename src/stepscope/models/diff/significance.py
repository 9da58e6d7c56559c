"""Whether two samples of steps differ significantly, and whether pairs measured in turns do.

A difference is significant if either of two tests says so at the 99 % level. Yuen's test is Welch's
t-test on trimmed means, without the lowest and highest fifth of the steps, so that one outlier step
decides nothing (with fewer than five steps all count). The Mann-Whitney test compares ranks, and so
detects that all steps of one side are slower however much they vary; it needs five steps per side.
A single step shows no variance, so no test applies.

Source: K. K. Yuen, The two-sample trimmed t for unequal population variances, Biometrika 61 (1974);
H. B. Mann and D. R. Whitney, On a test of whether one of two random variables is stochastically
larger than the other, Annals of Mathematical Statistics 18 (1947).
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.base.arrays import Floats
from stepscope.base.students_t import error_of_mean, student

_LEAST_STEPS = 2  # a single one shows no variance
_TRIMMED = 0.2  # of the steps, on each side
_LEVEL, _Z99 = 0.01, 2.576  # of the tests, and the quantile of the normal distribution for it
_CONFIDENCE = 0.95  # of the interval of very few steps
_ONE_SIDED, _Z95 = 20, 1.645  # one case of so many is outside of an end of the interval, and its quantile
_MANY_PAIRS = 400  # from which the ranks are distributed normally enough


def differs(before: Floats, after: Floats) -> bool | None:
    """Whether two samples differ significantly at the 99 % level; None if one has fewer than two steps.

    Example:
        >>> differs(np.array([10.0, 10.1, 9.9]), np.array([12.0, 12.1, 12.2]))
        True
        >>> differs(np.array([10.0, 14.0, 9.0]), np.array([12.0, 9.5, 13.0]))
        False
    """
    if min(len(before), len(after)) < _LEAST_STEPS:
        return None
    change, error, freedom = _trimmed_change(before, after)
    return abs(change) > student(freedom, 1 - _LEVEL) * error or _ranks_differ(before, after)


def steps_apart(before: Floats, after: Floats) -> tuple[int, int]:
    """How many steps of one side lie beyond all of the other, and of how many, in either order.

    Example:
        >>> steps_apart(np.array([10.0, 11.0, 15.0]), np.array([14.0, 15.5, 16.0]))
        (2, 3)
    """
    shorter, longer = sorted((before, after), key=lambda values: float(np.median(values)))
    sides = (longer > shorter.max(), shorter < longer.min())
    side = max(sides, key=lambda beyond: beyond.mean())
    return int(side.sum()), len(side)


def ratio_interval(before: Floats, after: Floats) -> tuple[float, float] | None:
    """How many times as long the steps after take: at least and at most, each at 95 % confidence.

    The ratios that the Mann-Whitney test does not exclude; of very few steps, those of Welch's test.
    In the other order it is the inverse. None if either side has fewer than two steps.
    """
    if min(len(before), len(after)) < _LEAST_STEPS:
        return None
    before, after = np.maximum(before, 1), np.maximum(after, 1)
    ratios = np.sort((after[:, None] / before[None, :]).ravel())
    outside = _rare_wins(len(before), len(after))
    if outside:
        return float(ratios[outside - 1]), float(ratios[-outside])
    change, error, freedom = _trimmed_change(np.log(before), np.log(after))
    reach = student(freedom, _CONFIDENCE) * error
    return math.exp(change - reach), math.exp(change + reach)


def _rare_wins(count_a: int, count_b: int) -> int:
    """How many numbers of won pairs, from 0 on, come by chance in one case of twenty together."""
    pairs = count_a * count_b
    if pairs > _MANY_PAIRS:
        return int(pairs / 2 - _Z95 * (pairs * (count_a + count_b + 1) / 12) ** 0.5)
    orderings = _orderings(count_a, count_b)
    return int((orderings.cumsum() * _ONE_SIDED <= orderings.sum()).sum())


def _trimmed_change(before: Floats, after: Floats) -> tuple[float, float, float]:
    """The difference of the trimmed means, its standard error, and its degrees of freedom."""
    (mean_a, error, free), (mean_b, other_error, other_free) = _trimmed(before), _trimmed(after)
    whole = error + other_error
    freedom = whole**2 / (error**2 / free + other_error**2 / other_free) if whole else 1.0
    return mean_b - mean_a, whole**0.5, freedom


def _trimmed(values: Floats) -> tuple[float, float, int]:
    """Trimmed mean, its squared standard error, and its degrees of freedom."""
    cut = int(_TRIMMED * len(values))
    ordered = np.sort(values)
    inner = ordered[cut : len(values) - cut]
    winsorized = np.clip(ordered, inner[0], inner[-1])
    kept = len(inner)
    spread = float(winsorized.var(ddof=1)) * (len(values) - 1)
    return float(inner.mean()), spread / (kept * (kept - 1)), kept - 1


def _ranks_differ(before: Floats, after: Floats) -> bool:
    above = (after[:, None] > before[None, :]).sum() + (after[:, None] == before[None, :]).sum() / 2
    pairs = len(before) * len(after)
    wins = int(np.ceil(min(above, pairs - above)))
    if pairs > _MANY_PAIRS:
        spread = (pairs * (len(before) + len(after) + 1) / 12) ** 0.5
        return bool((pairs / 2 - wins - 0.5) / spread > _Z99)
    orderings = _orderings(len(before), len(after))
    return bool(2 * orderings[: wins + 1].sum() < _LEVEL * orderings.sum())


def _orderings(count_a: int, count_b: int) -> Floats:
    """The number of orderings in which the second sample wins 0, 1, 2, … pairs."""
    orderings = np.zeros(count_a * count_b + 1)
    orderings[0] = 1
    # The generating function is the Gaussian binomial coefficient, factor by factor.
    for factor in range(1, count_b + 1):
        up = count_a + factor
        orderings[up:] = (orderings - np.append(np.zeros(up), orderings)[: len(orderings)])[up:]
        for place in range(factor, len(orderings)):
            orderings[place] += orderings[place - factor]
    return orderings


LEAST_PAIRS = 5  # below, the spread between pairs is not known
CONFIDENCE = 0.995  # of the interval, as it is looked at after every pair
ALIKE = 1.3  # percent; twice what 60 pairs of equal steps differed by: where their data lies


@dataclass(frozen=True)
class Decision:
    """A verdict on pairs of step times."""

    verdict: str = "cannot tell"  # `slower`, `not slower` or `cannot tell`
    change: float = 0.0  # of the step time from the first to the second, percent
    # its interval, percent
    least: float = -100.0
    most: float = math.inf


def decide(pairs: Sequence[tuple[float, float]], limit: float, alike: float = 0.0) -> Decision:
    """Decide from step times before and after, in one unit, each measured next to each other.

    `limit` is the change that is accepted, and `alike` how much equal steps differ anyway, percent.
    """
    logs = [math.log(after / before) for before, after in pairs]
    if len(logs) < LEAST_PAIRS:
        return Decision(change=_percent(statistics.fmean(logs)) if logs else 0.0)
    mean, reach = statistics.fmean(logs), math.hypot(error_of_mean(logs, CONFIDENCE), alike / 100)
    least, most = _percent(mean - reach), _percent(mean + reach)
    verdict = "slower" if least > limit else "not slower" if most < limit else "cannot tell"
    return Decision(verdict, _percent(mean), least, most)


def _percent(log: float) -> float:
    return (math.exp(log) - 1) * 100
