"""Whether two rows of measurements differ by more than they vary.

Two tests at 99 %, either of which is enough. Yuen's is Welch's t-test on means without the lowest
and the highest fifth of the steps, so that one step in which the machine was busy decides nothing
(of fewer than five steps all count). Mann and Whitney's goes by order alone, and so sees that all
steps of one side are slower however much they vary; it needs five steps on each side. Of one step
nothing can be told of the spread, and nothing is.

Source: K. K. Yuen, The two-sample trimmed t for unequal population variances, Biometrika 61 (1974);
H. B. Mann and D. R. Whitney, On a test of whether one of two random variables is stochastically
larger than the other, Annals of Mathematical Statistics 18 (1947).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
# Student's t at 99 %, two-sided, by degrees of freedom from 1 on.
_T99 = (63.66, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169, 3.106, 3.055, 3.012,
        2.977, 2.947, 2.921, 2.898, 2.878, 2.861, 2.845)  # fmt: skip
_T99_BEYOND = 2.845
_LEAST_STEPS = 2
_TRIMMED = 0.2
_LEVEL, _Z99 = 0.01, 2.576
_MANY_PAIRS = 400


def differs(before: Floats, after: Floats) -> bool | None:
    """Whether two rows of measurements differ by more than chance makes likely.

    Args:
        before, after: one value a step, float64.

    Returns:
        None where either side has fewer than two steps.

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
    (one, error, free), (other, other_error, other_free) = _trimmed(before), _trimmed(after)
    whole = error + other_error
    if whole == 0:
        return one != other
    freedom = whole**2 / (error**2 / free + other_error**2 / other_free)
    return bool(abs(one - other) > _critical(freedom) * whole**0.5)


def _trimmed(values: Floats) -> tuple[float, float, int]:
    """Mean without the extremes, its squared standard error, and its degrees of freedom."""
    cut = int(_TRIMMED * len(values))
    ordered = np.sort(values)
    inner = ordered[cut : len(values) - cut]
    drawn_in = np.clip(ordered, inner[0], inner[-1])
    kept = len(inner)
    spread = float(drawn_in.var(ddof=1)) * (len(values) - 1)
    return float(inner.mean()), spread / (kept * (kept - 1)), kept - 1


def _critical(freedom: float) -> float:
    """The value of t that chance exceeds in one case of a hundred; never too small a one."""
    whole = max(int(freedom), 1)
    return _T99[whole - 1] if whole <= len(_T99) else _T99_BEYOND


def _ranks_differ(before: Floats, after: Floats) -> bool:
    above = (after[:, None] > before[None, :]).sum() + (after[:, None] == before[None, :]).sum() / 2
    pairs = len(before) * len(after)
    wins = int(np.ceil(min(above, pairs - above)))
    if pairs > _MANY_PAIRS:
        spread = (pairs * (len(before) + len(after) + 1) / 12) ** 0.5
        return bool((pairs / 2 - wins - 0.5) / spread > _Z99)
    ways = _orders(len(before), len(after))
    return bool(2 * ways[: wins + 1].sum() < _LEVEL * ways.sum())


def _orders(one: int, other: int) -> Floats:
    """In how many orders of two rows the second beats the first in 0, 1, 2, … pairs."""
    ways = np.zeros(one * other + 1)
    ways[0] = 1
    # The generating function is the Gaussian binomial coefficient, factor by factor.
    for factor in range(1, other + 1):
        up = one + factor
        ways[up:] = (ways - np.append(np.zeros(up), ways)[: len(ways)])[up:]
        for place in range(factor, len(ways)):
            ways[place] += ways[place - factor]
    return ways
