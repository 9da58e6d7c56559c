"""The next batch size to measure: where run time is not linear and neighboring lines disagree."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import log

from stepscope.batch_size.fit import fit_model, hold_back
from stepscope.batch_size.fit_warnings import time_tolerance
from stepscope.batch_size.linear_model import Model
from stepscope.batch_size.measurement import BatchPoint

_APART = 1.15  # closer ones differ by less than noise


def refine(points: Sequence[BatchPoint]) -> int | None:
    """The batch size that shows most about where run time is not linear.

    Args:
        points: at least three, by batch size; the one measured last is held back.

    Returns:
        A batch size between two of them; None where the models predict what was measured.

    Example:
        >>> points = [BatchPoint(x, 80.0 * x, 0) for x in (8, 12)]
        >>> points += [BatchPoint(x, 60.0 * x, 0) for x in (16, 24, 32, 40)]
        >>> refine(points)  # the other kernel begins between 12 and 16
        14
    """
    model = _model(points)
    if model.linear and not _misses(model, points):
        return None
    return _between(points)


def _model(points: Sequence[BatchPoint]) -> Model:
    return fit_model(
        [one.batch for one in points],
        [one.ms for one in points],
        tolerance=time_tolerance(points),
    )


def _misses(model: Model, points: Sequence[BatchPoint]) -> bool:
    """Whether the model, or the one without the held-back point, is off by more than noise."""
    worst = model.residual()
    for held in (one for one in points if one.held_back):
        others = _model([one for one in points if one is not held])
        worst = max(worst, hold_back(others, held.batch, held.ms))
    return worst > time_tolerance(points)


def _between(points: Sequence[BatchPoint]) -> int | None:
    """The middle of the gap where most batch sizes are most uncertain."""
    best, most = None, 0.0
    for at, (low, high) in enumerate(pairwise(points)):
        doubt = _disagreement(points, at)
        wide = high.batch - low.batch >= 2 and high.batch >= _APART * low.batch
        if wide and doubt > time_tolerance(points) / 2:
            weight = doubt * log(high.batch / low.batch)
            if weight > most:
                best, most = (low.batch + high.batch) // 2, weight
    return best


def _disagreement(points: Sequence[BatchPoint], at: int) -> float:
    """How far the middle of a gap is from where the lines of both neighboring gaps lead,
    relative; the nearer of the two counts, as the other may cross a step of its own."""
    low, high = points[at], points[at + 1]
    middle = (low.ms + high.ms) / 2
    batch = (low.batch + high.batch) / 2
    before = points[at - 1] if at else BatchPoint(0, 0.0, 0)
    led = [_led(before, low, batch)]
    if at + 2 < len(points):
        led.append(_led(high, points[at + 2], batch))
    return min(abs(one / middle - 1) for one in led)


def _led(left: BatchPoint, right: BatchPoint, batch: float) -> float:
    slope = (right.ms - left.ms) / (right.batch - left.batch)
    return right.ms + slope * (batch - right.batch)
