"""Lines through measured values by batch size: least squares, piecewise if one line misses.

Source: Yu et al., Skyline (UIST 2020), "Making Performance Predictions", for one line. The pieces
and the error on a point held back are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from stepscope.arrays import Floats
from stepscope.batch_size.linear_model import Model, Piece

_LEAST_LINE, _LEAST_POINTS = 3, 5


def fit_line(batches: Sequence[float] | Floats, values: Sequence[float] | Floats) -> Piece:
    """Least squares.

    Args:
        batches: at least two different batch sizes.
        values: one for each.
    """
    x, y = np.asarray(batches, float), np.asarray(values, float)
    away = x - x.mean()
    slope = float((away * (y - y.mean())).sum() / (away**2).sum())
    return Piece(float(x.min()), slope, float(y.mean() - slope * x.mean()))


def fit_time_line(batches: Sequence[float] | Floats, values: Sequence[float] | Floats) -> Piece:
    """Least squares with neither a negative slope nor a negative constant: no step takes less than
    no time, and none is faster for a larger batch but by chance. One point makes a line from 0."""
    x, y = np.asarray(batches, float), np.asarray(values, float)
    line = fit_line(x, y) if len(x) > 1 else None
    if line is not None and line.slope < 0:
        return Piece(line.start, 0.0, float(y.mean()))
    if line is None or line.intercept < 0:
        return Piece(float(x.min()), float((x * y).sum() / (x * x).sum()), 0.0)
    return line


def fit_model(
    batches: Sequence[float],
    values: Sequence[float],
    errors: Sequence[float] | None = None,
    repeats: Sequence[int] | None = None,
    tolerance: float = 0.04,
) -> Model:
    """Run time: a line, or lines from point to point where one misses by more than `tolerance`.

    Args:
        batches: different batch sizes, at least two, three for a band that means something.
        values: what was measured, one for each.
        errors: standard error of each value, where known from repeats.
        repeats: how often each was measured.
        tolerance: relative.

    Returns:
        The model.
    """
    x, y = _by_batch(batches, values)
    one = _model((fit_time_line(x, y),), x, y, errors, repeats)
    if one.residual() <= tolerance or len(x) < _LEAST_POINTS:
        return one
    runs = [(x[run], y[run]) for run in _runs(x, y, tolerance)]
    lines = [fit_line(*run) for run in runs]
    pieces = (*_below(lines[0], *runs[0]), *lines, *_beyond(lines[-1], *runs[-1]))
    return _model(pieces, x, y, errors, repeats)


def _below(line: Piece, x: Floats, y: Floats) -> tuple[Piece, ...]:
    """Below the smallest batch size the first line goes on, if it leads to some time at none."""
    return () if line.intercept >= 0 else (Piece(0.0, float(y[0] / x[0]), 0.0),)


def _beyond(line: Piece, x: Floats, y: Floats) -> tuple[Piece, ...]:
    """Beyond the largest the last one does, if three points make it and it began at some time; else
    a sample takes as long as there, as two points say nothing about larger sizes.
    """
    beyond = fit_time_line(x, y) if len(x) >= _LEAST_LINE else fit_time_line(x[-1:], y[-1:])
    same = np.isclose(line.intercept, beyond.intercept, rtol=0, atol=1e-6 * y[-1])
    return () if same else (replace(beyond, start=float(x[-1])),)


def _by_batch(batches: Sequence[float], values: Sequence[float]) -> tuple[Floats, Floats]:
    """Both in the order of the batch sizes."""
    order = np.argsort(batches, kind="stable")
    return np.asarray(batches, float)[order], np.asarray(values, float)[order]


def fit_peaks(batches: Sequence[float], values: Sequence[float], tolerance: float = 0.002) -> Model:
    """Memory: a line, or several where the peak moves to another place in the step.

    Each place in the step holds a constant and so much a sample; the peak is the greatest of them,
    so its slope can only grow. Memory has no noise but for sizes that are rounded up: where one
    line misses by more than `tolerance`, points in a row on one line make a piece, if slopes grow.

    Args:
        batches: different batch sizes, at least two.
        values: bytes.
        tolerance: relative.

    Returns:
        The model.
    """
    x, y = _by_batch(batches, values)
    one = _model((fit_line(x, y),), x, y, None, None)
    if one.residual() <= tolerance or len(x) < 3:
        return one
    pieces = tuple(fit_line(x[run], y[run]) for run in _runs(x, y, tolerance))
    grows = all(left.slope < right.slope for left, right in pairwise(pieces))
    return _model(pieces, x, y, None, None) if grows else one


def _runs(x: Floats, y: Floats, tolerance: float) -> list[slice]:
    """Points in a row that a line meets; neighbors share the point between them."""
    starts = [0]
    for end in range(2, len(x)):
        held = slice(starts[-1], end + 1)
        line = fit_line(x[held], y[held])
        if (np.abs(line.slope * x[held] + line.intercept - y[held]) > tolerance * y[held]).any():
            starts.append(end - 1)
    ends = [*(start + 1 for start in starts[1:]), len(x)]
    return [slice(*run) for run in zip(starts, ends, strict=True)]


def hold_back(model: Model, batch: float, value: float) -> float:
    """The relative error of a model on a point that it was not made from."""
    return abs(model.at(batch) - value) / value


def _model(
    pieces: tuple[Piece, ...],
    x: Floats,
    y: Floats,
    errors: Sequence[float] | None,
    repeats: Sequence[int] | None,
) -> Model:
    """Noise is pooled from the residuals and from the repeats."""
    left = max(0, len(x) - 2 * len(pieces))
    squares, freedom = _squares(pieces, x, y), left
    if errors is not None and repeats is not None:
        extra = int(sum(max(0, count - 1) for count in repeats))
        squares += extra * float(np.mean(np.square(errors))) if extra else 0.0
        freedom += extra
    noise = float(np.sqrt(squares / freedom)) if freedom else 0.0
    return Model(pieces, tuple(x.tolist()), tuple(y.tolist()), noise, freedom)


def _squares(pieces: tuple[Piece, ...], x: Floats, y: Floats) -> float:
    model = Model(pieces, (), (), 0.0, 0)
    return float(sum((model.at(one) - value) ** 2 for one, value in zip(x, y, strict=True)))
