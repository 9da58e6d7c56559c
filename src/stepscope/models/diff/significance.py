"""Whether two samples differ significantly.

A difference is significant if either of two tests says so at the 99 % level. Yuen's test is Welch's
t-test on trimmed means, without the lowest and highest fifth of the steps, so that one outlier step
decides nothing (with fewer than five steps all count). The Mann-Whitney test compares ranks, and so
detects that all steps of one side are slower however much they vary; it needs five steps per side.
A single step shows no variance, so no test applies.

Source: K. K. Yuen, The two-sample trimmed t for unequal population variances, Biometrika 61 (1974);
H. B. Mann and D. R. Whitney, On a test of whether one of two random variables is stochastically
larger than the other, Annals of Mathematical Statistics 18 (1947).
"""

import numpy as np

from stepscope.base.arrays import Floats
from stepscope.base.students_t import student

_LEAST_STEPS = 2  # a single one shows no variance
_TRIMMED = 0.2  # of the steps, on each side
_LEVEL, _Z99 = 0.01, 2.576  # of the tests, and the quantile of the normal distribution for it
_MANY_PAIRS = 400  # from which the ranks are distributed normally enough


def differs(before: Floats, after: Floats) -> bool | None:
    """Whether two samples differ significantly at the 99 % level.

    Returns:
        None if either side has fewer than two steps.

    Example:
        >>> differs(np.array([10.0, 10.1, 9.9]), np.array([12.0, 12.1, 12.2]))
        True
        >>> differs(np.array([10.0, 14.0, 9.0]), np.array([12.0, 9.5, 13.0]))
        False
    """
    if min(len(before), len(after)) < _LEAST_STEPS:
        return None
    return _trimmed_means_differ(before, after) or _ranks_differ(before, after)


def _trimmed_means_differ(before: Floats, after: Floats) -> bool:
    (mean_a, error, free), (mean_b, other_error, other_free) = _trimmed(before), _trimmed(after)
    whole = error + other_error
    if whole == 0:
        return mean_a != mean_b
    freedom = whole**2 / (error**2 / free + other_error**2 / other_free)
    return bool(abs(mean_a - mean_b) > student(freedom, 1 - _LEVEL) * whole**0.5)


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
