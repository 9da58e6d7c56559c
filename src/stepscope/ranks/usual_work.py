"""What a rank that is not slow takes, and when a rank is slow."""

from __future__ import annotations

import numpy as np

from stepscope.arrays import Floats, Mask

_PAIR = 2
LEAST_SHARE = 0.03  # of the step: what is smaller is no straggler
LEAST_SPREADS = 6.0  # robust spreads of the other ranks
HALF = 0.35  # of the ranks: of two halves, each has more


def usual(values: Floats, others: Mask | None = None) -> Floats:
    """What a rank that is not slow takes: the median rank, of two ranks the faster one.

    Args:
        values: shape (ranks, n).
        others: which ranks to compare with, same shape; by default all.
    """
    if others is not None and not others.all():
        kept: Floats = np.nanmedian(np.where(others, values, np.nan), axis=0)
        return kept
    result: Floats = np.median(values, axis=0) if len(values) > _PAIR else values.min(axis=0)
    return result


def faster_half(values: Floats, step_ms: float) -> Mask:
    """The ranks to compare with: all, but where they fall in two halves, those of the faster one.

    They may do so over all steps, or in some of them.

    Args:
        values: shape (ranks, steps).
        step_ms: the length of a step.

    Returns:
        Of shape (ranks, steps).
    """
    if len(values) <= _PAIR:
        return np.ones(values.shape, np.bool_)
    each = np.median(values, axis=1, keepdims=True)
    over_all = _faster_by_column(each, step_ms)
    if not over_all.all():
        return np.broadcast_to(over_all, values.shape)
    return _faster_by_column(values, step_ms)


def _faster_by_column(values: Floats, step_ms: float) -> Mask:
    """The faster half of each column, all ranks of those that do not fall in two."""
    ranks, columns = values.shape
    order = np.sort(values, axis=0)
    first, last = int(HALF * ranks), int(np.ceil((1 - HALF) * ranks))
    gaps = np.diff(order, axis=0)[first:last]
    every = np.ones(values.shape, np.bool_)
    if not len(gaps):
        return every
    at = first + gaps.argmax(axis=0)
    apart = (gaps.max(axis=0) >= LEAST_SHARE * step_ms) & (ranks - at - 1 >= HALF * ranks)
    if not apart.any():
        return every
    around = spread(order - np.median(order, axis=0), axis=0)
    for column in np.flatnonzero(apart).tolist():
        halves = np.split(order[:, column], [at[column] + 1])
        around[column] = max(float(spread(half - np.median(half), axis=0)) for half in halves)
    noise = np.maximum(around, np.median(around))
    apart &= gaps.max(axis=0) >= LEAST_SPREADS * noise
    slowest = order[at, np.arange(columns)]
    compared: Mask = ~apart | (values <= slowest)
    return compared


def noise_of(values: Floats, excess: Floats, others: Mask | None = None) -> Floats:
    """What ranks that are not slow differ by in each step, shape (steps,).

    Of two ranks, none shows the spread of the others. There it is the changes from step to step,
    of the steadier rank or of what they differ by: a slow rank may be unsteady, and the work of
    both may change.

    Args:
        values: what each rank takes, shape (ranks, steps).
        excess: how much more that is than usual, same shape.
        others: which ranks to compare with, same shape; by default all.
    """
    if len(excess) <= _PAIR:
        return _over_time(values)
    if others is None or others.all():
        each = spread(excess, axis=0)
    else:
        few = others.sum(axis=0) <= _PAIR
        each = spread(np.where(others, excess, np.nan), axis=0)
        each = np.where(few, np.maximum(each, _over_time(values)), each)
    result: Floats = np.maximum(each, np.median(each))
    return result


def _over_time(values: Floats) -> Floats:
    """The spread over the steps of the steadier rank or of what ranks differ by, for each step."""
    changes = np.concatenate([values, np.diff(values, axis=0)])
    around = changes - np.median(changes, axis=1, keepdims=True)
    return np.full(values.shape[1], spread(around, axis=1).min())


def spread(values: Floats, axis: int) -> Floats:
    """The robust spread around zero; nan counts as no value."""
    middle = np.nanmedian if np.isnan(values).any() else np.median
    result: Floats = middle(np.abs(values), axis=axis) * 1.4826
    return result
