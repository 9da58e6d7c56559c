"""Whether a step became slower, from pairs of times that were measured in turns on one machine."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.base.students_t import error_of_mean

LEAST_PAIRS = 5  # below, the spread between pairs is not known
CONFIDENCE = 0.995  # of the interval, as it is looked at after every pair


@dataclass(frozen=True)
class Decision:
    """A verdict on pairs of step times.

    Attributes:
        verdict: `slower`, `not slower` or `cannot tell`.
        change: of the step time from the first to the second, percent.
        least, most: its interval, percent.
    """

    verdict: str = "cannot tell"
    change: float = 0.0
    least: float = -100.0
    most: float = math.inf


def decide(pairs: Sequence[tuple[float, float]], limit: float) -> Decision:
    """Decide from step times before and after, in one unit.

    Args:
        pairs: times before and after, each measured next to each other.
        limit: the change that is accepted, percent.

    Example:
        >>> decide([(100, 110), (99, 110), (101, 110), (100, 109), (100, 111)], 2).verdict
        'slower'
    """
    logs = [math.log(after / before) for before, after in pairs]
    if len(logs) < LEAST_PAIRS:
        return Decision(change=_percent(statistics.fmean(logs)) if logs else 0.0)
    mean, reach = statistics.fmean(logs), error_of_mean(logs, CONFIDENCE)
    least, most = _percent(mean - reach), _percent(mean + reach)
    verdict = "slower" if least > limit else "not slower" if most < limit else "cannot tell"
    return Decision(verdict, _percent(mean), least, most)


def _percent(log: float) -> float:
    return (math.exp(log) - 1) * 100
