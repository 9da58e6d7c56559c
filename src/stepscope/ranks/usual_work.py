"""What a rank that is not slow takes, and when a rank is slow."""

from __future__ import annotations

import numpy as np

from stepscope.arrays import Floats, Mask

_PAIR = 2
_LEAST_SHARE = 0.03  # of the step: what is smaller is no straggler
LEAST_SPREADS = 6.0  # robust spreads of the other ranks
HALF = 0.35  # of the ranks: of two halves, each has more


def usual(values: Floats) -> Floats:
    """What a rank that is not slow takes: the median rank, of two ranks the faster one.

    Args:
        values: shape (ranks, n).
    """
    result: Floats = np.median(values, axis=0) if len(values) > _PAIR else values.min(axis=0)
    return result


def faster_half(values: Floats, step_ms: float) -> Mask:
    """The ranks to compare with: all, but where they fall in two halves, those of the faster one.

    Args:
        values: shape (ranks, steps).
        step_ms: the length of a step.
    """
    each = np.median(values, axis=1)
    order = np.sort(each)
    inside = slice(int(HALF * len(order)), int(np.ceil((1 - HALF) * len(order))))
    gaps = np.diff(order)[inside]
    every = np.ones(len(each), np.bool_)
    if len(order) <= _PAIR or not len(gaps):
        return every
    at = inside.start + int(gaps.argmax())
    lower, upper = order[: at + 1], order[at + 1 :]
    around = max(float(spread(half - np.median(half), axis=0)) for half in (lower, upper))
    is_half = len(upper) >= HALF * len(order)
    if not is_half or gaps.max() < max(_LEAST_SHARE * step_ms, LEAST_SPREADS * around):
        return every
    result: Mask = each <= order[at]
    return result


def threshold(values: Floats, excess: Floats, step_ms: float) -> Floats:
    """Above which a rank is slow in a step: a share of the step, and far beyond the others.

    Of two ranks, none shows the spread of the others. There it is far beyond the changes from step
    to step, of the steadier rank or of what they differ by: a slow rank may be unsteady, and the
    work of both may change.

    Args:
        values: what each rank takes, shape (ranks, steps).
        excess: how much more that is than usual, same shape.
        step_ms: the length of a step.

    Returns:
        ms, shape (steps,).
    """
    noise = _between(excess) if len(excess) > _PAIR else _over_time(values)
    result: Floats = np.maximum(_LEAST_SHARE * step_ms, LEAST_SPREADS * noise)
    return result


def _between(excess: Floats) -> Floats:
    """The spread of ranks in each step, at least that of the median step."""
    each = spread(excess, axis=0)
    return np.maximum(each, np.median(each))


def _over_time(values: Floats) -> Floats:
    """The spread over the steps of the steadier rank or of what ranks differ by, for each step."""
    changes = np.concatenate([values, np.diff(values, axis=0)])
    around = changes - np.median(changes, axis=1, keepdims=True)
    return np.full(values.shape[1], spread(around, axis=1).min())


def spread(values: Floats, axis: int) -> Floats:
    """The robust spread around zero."""
    result: Floats = np.median(np.abs(values), axis=axis) * 1.4826
    return result
