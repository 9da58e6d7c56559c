"""A quantity of a step as a line over the batch size, with a band; piecewise if one line misses.

    R(x) = a x + b        M(x) = c x + d        T(x) = x / R(x), at most 1 / a

Source: Yu et al., Skyline (UIST 2020), equations 1 to 3 and "Making Performance Predictions", for
one line. The bands, the pieces and the error on a point held back are ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from typing import TypeVar

import numpy as np

from stepscope.base.arrays import Floats
from stepscope.base.students_t import STUDENT
from stepscope.models.batch_size.measurement import BatchPoint, scatter

Number = TypeVar("Number", float, Floats)
_NORMAL = 1.96  # for more degrees of freedom than are listed: of the normal distribution
_TINY = 1e-9  # relative, of rounding
_LEAST_LINE, _LEAST_POINTS = 3, 5  # points of a line that extends, and of pieces
TIME_TOLERANCE, MEMORY_TOLERANCE = 0.04, 0.002  # relative distance from a line
FAILED_CHECK = 0.25  # relative error on the held-back point beyond which nothing is suggested
_MOST_WORKSPACE = 2  # times the largest that was seen; chosen: U-Net on an H200 takes 1.96 times
_NOISE = 2  # standard errors within which a line is not wrong


@dataclass(frozen=True)
class Piece:
    """One straight line."""

    start: float
    slope: float
    intercept: float  # at batch size 0

    def at(self, batch: Number) -> Number:
        """The value at a batch size."""
        return self.slope * batch + self.intercept

    def first_with(self, rate: float, low: int) -> int | None:
        """The first whole batch size from `low` on with at most 1 / `rate` a sample, if any."""
        gain, needed = 1 - rate * self.slope, rate * self.intercept
        if gain * low >= needed - _TINY * abs(needed):
            return low
        return ceil(needed / gain * (1 - _TINY)) if gain > 0 else None


@dataclass(frozen=True)
class Model:
    """A quantity as a function of the batch size."""

    pieces: tuple[Piece, ...]  # one line, or several in order of start
    batches: tuple[float, ...]
    values: tuple[float, ...]
    noise: float  # standard deviation of one of the values
    freedom: int  # degrees of freedom that the noise was estimated with
    own_error: float | None = None  # relative error on a point held back; None where none was
    tensors: tuple[Piece, ...] = ()  # the same without workspaces, where sizes take some

    @property
    def slope(self) -> float:
        """Per sample, at large batch sizes."""
        return self.pieces[-1].slope

    @property
    def intercept(self) -> float:
        """The constant part, at large batch sizes."""
        return self.pieces[-1].intercept

    @property
    def bends(self) -> tuple[float, ...]:
        """The batch sizes, between the smallest and the largest, where another line begins."""
        starts = (piece.start for piece in self.pieces[1:])
        return tuple(start for start in starts if self.batches[0] < start < self.batches[-1])

    @property
    def linear(self) -> bool:
        """Whether it is a single line."""
        return len(self.pieces) == 1

    def at(self, batch: float) -> float:
        """The value at a batch size."""
        return _value(self.pieces, batch)

    def least(self, batch: float) -> float:
        """The same without workspaces: a library asks for less where memory is short."""
        return _value(self.tensors or self.pieces, batch)

    @property
    def workspace(self) -> float:
        """The most that was seen of what a measured size takes beyond its tensors."""
        return max(self._workspaces(), default=0.0) if self.tensors else 0.0

    def _workspaces(self) -> list[float]:
        return [value - self.least(batch) for batch, value in zip(self.batches, self.values, strict=True)]

    def first_with(self, rate: float) -> int | None:
        """The smallest whole batch size at which it is at most 1 / `rate` a sample, if any."""
        starts = [1.0, *(piece.start for piece in self.pieces[1:]), float("inf")]
        for piece, (low, high) in zip(self.pieces, pairwise(starts), strict=True):
            first = piece.first_with(rate, ceil(low))
            if first is not None and first < high:
                return first
        return None

    def range(self, batch: float) -> tuple[float, float]:
        """Where the value is expected, with 95 % confidence: for the noise of the line, not less
        than the error on the point held back, and where it bends what a convex curve may do."""
        value = self.at(batch)
        half = max(self._band(batch), (self.own_error or 0.0) * abs(value))
        low, high = (value, value) if self.linear else convex_range(self.batches, self.values, batch)
        if self.tensors and self.batches[0] <= batch <= self.batches[-1]:
            low, high = min(low, self.least(batch)), max(high, self._most(batch))
        return max(0.0, min(value - half, low)), max(value + half, high)

    def _most(self, batch: float) -> float:
        """With the largest workspace: they grow in proportion, and further than was seen."""
        pairs = zip(self._workspaces(), self.batches, strict=True)
        a_sample = max(extra / size for extra, size in pairs)
        return self.least(batch) + min(a_sample * batch, _MOST_WORKSPACE * self.workspace)

    @property
    def has_certain_slope(self) -> bool:
        """Whether the slope is more than twice its own 95 % confidence interval's half width."""
        x = np.array(self.batches)
        spread = float(((x - x.mean()) ** 2).sum())
        half = student(self.freedom) * self.noise / float(np.sqrt(spread)) if spread else float("inf")
        return self.slope > 2 * half

    def residual(self) -> float:
        """The greatest relative distance of a measured value from the model."""
        pairs = zip(self.batches, self.values, strict=True)
        return max((abs(self.at(x) - y) / y for x, y in pairs if y), default=0.0)

    def _band(self, batch: float) -> float:
        x = np.array(self.batches)
        spread = float(((x - x.mean()) ** 2).sum())
        distance = (batch - x.mean()) ** 2 / spread if spread else 0.0
        return student(self.freedom) * self.noise * float(np.sqrt(1 / len(x) + distance))


def student(freedom: int) -> float:
    """The two-sided 95 % point of Student's t."""
    quantiles = STUDENT[0.95]
    return quantiles[max(freedom, 1) - 1] if freedom <= len(quantiles) else _NORMAL


def fit_line(batches: Sequence[float] | Floats, values: Sequence[float] | Floats) -> Piece:
    """Least squares."""
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
    tolerance: float = TIME_TOLERANCE,
) -> Model:
    """Run time: a line, or lines from point to point where one misses by more than `tolerance`."""
    x, y = _by_batch(batches, values)
    straight = _model((fit_time_line(x, y),), x, y, errors, repeats)
    if straight.residual() <= tolerance or len(x) < _LEAST_POINTS:
        return straight
    runs = [(x[run], y[run]) for run in _runs(x, y, tolerance)]
    lines = [fit_line(*run) for run in runs]
    # Below the smallest batch size the first line goes on, if it leads to some time at none.
    below = [] if lines[0].intercept >= 0 else [Piece(0.0, float(y[0] / x[0]), 0.0)]
    return _model((*below, *lines, *_beyond(lines[-1], *runs[-1])), x, y, errors, repeats)


def _beyond(line: Piece, x: Floats, y: Floats) -> tuple[Piece, ...]:
    """Beyond the largest the last one does, if three points make it and it began at some time; else
    a sample takes as long as there, as two points say nothing about larger sizes.
    """
    beyond = fit_time_line(x, y) if len(x) >= _LEAST_LINE else fit_time_line(x[-1:], y[-1:])
    same = np.isclose(line.intercept, beyond.intercept, rtol=0, atol=1e-6 * y[-1])
    return () if same else (replace(beyond, start=float(x[-1])),)


def _by_batch(batches: Sequence[float], values: Sequence[float]) -> tuple[Floats, Floats]:
    order = np.argsort(batches, kind="stable")
    return np.asarray(batches, float)[order], np.asarray(values, float)[order]


def fit_peaks(batches: Sequence[float], values: Sequence[float]) -> Model:
    """Memory: a line, or several where the peak moves to another place in the step.

    Each place in the step holds a constant and so much a sample; the peak is the greatest of them,
    so its slope can only grow. What a size takes beyond that are workspaces: libraries choose
    algorithms by size, and ask for less where memory is short. Other sizes are taken to use that of
    the next smaller measured one.

    Memory has no noise but for sizes that are rounded up.
    """
    x, y = _by_batch(batches, values)
    straight = _model((fit_line(x, y),), x, y, None, None)
    if straight.residual() <= MEMORY_TOLERANCE or len(x) < 3:
        return straight
    tensors = _tensors(x, y)
    extra = y - [_value(tensors, batch) for batch in x]
    if (extra <= MEMORY_TOLERANCE * y).all():
        return _model(tensors, x, y, None, None)
    if len(x) < _LEAST_POINTS:
        return straight
    return replace(_model(_with_workspaces(tensors, x, extra), x, y, None, None), tensors=tensors)


def _tensors(x: Floats, y: Floats) -> tuple[Piece, ...]:
    """The greatest convex function below the points, as lines.

    From the smallest size to the next a peak that does not grow with the batch, as the optimizer's,
    goes over into a line that three points make.
    """
    hull = _hull(x, y)
    runs = _runs(x[hull], y[hull], MEMORY_TOLERANCE)
    lines = [fit_line(x[hull][run], y[hull][run]) for run in runs]
    floor = Piece(float(x[0]), 0.0, float(y[0]))
    if len(runs) > 1 and runs[0].stop == 2 and hull[1] == 1 and lines[1].slope > 0:
        met = np.abs(lines[1].at(x) - y) <= MEMORY_TOLERANCE * y
        if met.sum() >= _LEAST_LINE and x[0] < _meet(floor, lines[1]) < lines[1].start:
            lines[0] = floor
    return _greatest(lines)


def _hull(x: Floats, y: Floats) -> list[int]:
    """Positions of the points that no line between others is below.

    The last one may take a workspace that is not larger than that of another size: two points alone
    say nothing about larger sizes.
    """
    hull = [0]
    for place in range(1, len(x)):
        while len(hull) > 1 and _slope(x, y, hull[-2], hull[-1]) >= _slope(x, y, hull[-2], place):
            hull.pop()
        hull.append(place)
    if len(hull) > 2:
        before = fit_line(x[hull[-3:-1]], y[hull[-3:-1]])
        if y[-1] - before.at(x[-1]) <= (y - np.interp(x, x[hull], y[hull])).max():
            hull.pop()
    return hull


def _with_workspaces(tensors: Sequence[Piece], x: Floats, extra: Floats) -> tuple[Piece, ...]:
    """Lines of which each goes on with the workspace of the measured size at which it begins."""
    starts = sorted({*x.tolist(), *(piece.start for piece in tensors)})
    lines = [[piece for piece in tensors if piece.start <= start][-1] for start in starts]
    taken = np.maximum(extra, 0)[np.searchsorted(x, starts, side="right") - 1]
    return tuple(
        Piece(start, line.slope, line.intercept + float(workspace))
        for start, line, workspace in zip(starts, lines, taken, strict=True)
    )


def _greatest(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """The greater of neighboring lines: of two points that lie on different ones, the line through
    both is none of the step's, and goes where its neighbors meet between the points."""
    kept = list(pieces[:1])
    for piece, following in zip(pieces[1:], [*pieces[2:], None], strict=False):
        if following and piece.start < _meet(kept[-1], following) < following.start:
            continue
        kept.append(replace(piece, start=max(_meet(kept[-1], piece), kept[-1].start)))
    return tuple(kept)


def _meet(left: Piece, right: Piece) -> float:
    return (left.intercept - right.intercept) / (right.slope - left.slope)


def convex_range(batches: Sequence[float], values: Sequence[float], batch: float) -> tuple[float, float]:
    """Where a maximum of lines through some points may lie at another batch size.

    It lies above the lines of the points on either side, and below the chord between its neighbors.
    Beyond the last point it grows at least as it did, and at most in proportion.

    Args:
        batches: at least two, in order.

    Example:
        >>> convex_range([1, 2, 4, 8], [5, 5, 6, 10], 3)  # flat until 2, then by 0.5 or 1
        (5.0, 5.5)
    """
    x, y = np.asarray(batches, float), np.asarray(values, float)
    slopes = np.diff(y) / np.diff(x)
    if batch >= x[-1]:
        ends = float(y[-1] + slopes[-1] * (batch - x[-1])), float(y[-1] * batch / x[-1])
        return min(ends), max(ends)
    if batch <= x[0]:
        return max(float(y[0] - max(slopes[0], 0.0) * (x[0] - batch)), 0.0), float(y[0])
    place = int(np.searchsorted(x, batch, side="right")) - 1
    chord = float(y[place] + slopes[place] * (batch - x[place]))
    left = y[place] + (slopes[place - 1] if place else 0.0) * (batch - x[place])
    after = slopes[place + 1] if place + 1 < len(slopes) else y[place + 1] / x[place + 1]
    lines = float(max(left, y[place + 1] - after * (x[place + 1] - batch)))
    return min(lines, chord), max(lines, chord)


def _value(pieces: Sequence[Piece], batch: float) -> float:
    piece = [piece for piece in pieces if piece.start <= batch] or [pieces[0]]
    return piece[-1].at(batch)


def _slope(x: Floats, y: Floats, left: int, right: int) -> float:
    return float((y[right] - y[left]) / (x[right] - x[left]))


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


def _model(
    pieces: tuple[Piece, ...],
    x: Floats,
    y: Floats,
    errors: Sequence[float] | None,
    repeats: Sequence[int] | None,
) -> Model:
    """Noise is pooled from the residuals and from the repeats."""
    freedom, bare = max(0, len(x) - 2 * len(pieces)), Model(pieces, (), (), 0.0, 0)
    squares = float(sum((bare.at(batch) - value) ** 2 for batch, value in zip(x, y, strict=True)))
    if errors is not None and repeats is not None:
        extra = int(sum(max(0, count - 1) for count in repeats))
        squares += extra * float(np.mean(np.square(errors))) if extra else 0.0
        freedom += extra
    noise = float(np.sqrt(squares / freedom)) if freedom else 0.0
    return Model(pieces, tuple(x.tolist()), tuple(y.tolist()), noise, freedom)


def time_tolerance(points: Sequence[BatchPoint]) -> float:
    """The relative distance from a line that noise explains."""
    return max(TIME_TOLERANCE, _NOISE * scatter(points))


def check_failed(model: Model | None) -> bool:
    """Whether the model mispredicted the point that was held back."""
    error = model.own_error if model else None
    return error is not None and error > FAILED_CHECK


def time_warnings(time: Model, points: Sequence[BatchPoint]) -> list[str]:
    """Sentences about where the points contradict the model of run time."""
    notes = []
    noise = scatter(points)
    miss = time.residual()
    if not time.linear:
        bends = f"it bends at {_joined(time.bends)}" if time.bends else "it grows ever faster"
        notes.append(
            f"run time is not linear in the batch size: {bends} (another kernel is chosen, or a "
            "cache no longer holds the data); predictions use the segment of their batch size"
        )
    elif miss > time_tolerance(points):
        notes.append(
            f"run time deviates from its line by up to {miss:.0%}, more than noise explains "
            f"({noise:.1%}): kernels are chosen by size, or small batches leave the device idle; "
            "measure more batch sizes (--points)"
        )
    if noise > TIME_TOLERANCE:
        notes.append(
            f"step times are noisy (standard error {noise:.0%}): other programs use this machine; "
            "measure again when it is idle"
        )
    if time.slope <= 0:
        notes.append(
            "run time does not grow with the batch size: the device is not saturated, so the limit "
            "of throughput is unknown; start from a larger batch size"
        )
    return [*notes, *_check_warning(time, "run time")]


def memory_warnings(memory: Model) -> list[str]:
    """Sentences about where the points contradict the model of memory."""
    notes = []
    if memory.tensors:
        notes.append(
            f"some batch sizes take up to {memory.workspace / 2**30:.3g} GiB more than tensors need "
            "(workspaces of kernels); others are predicted with that of the next smaller size measured"
        )
    elif not memory.linear:
        notes.append(
            "the memory peak moves to another place in the step from batch size "
            f"{memory.pieces[-1].start:.0f} on; predictions use the segment of their batch size"
        )
    elif (miss := memory.residual()) > MEMORY_TOLERANCE:
        notes.append(
            f"memory deviates from its line by up to {miss:.1%}: the peak is not at the same place in "
            "the step at all batch sizes"
        )
    return [*notes, *_check_warning(memory, "memory")]


def _check_warning(model: Model, quantity: str) -> list[str]:
    if not check_failed(model):
        return []
    return [
        f"the model of {quantity} mispredicted the held-back batch size by {model.own_error:.0%}: "
        "no batch size is suggested; choose among those measured"
    ]


def _joined(batches: Sequence[float]) -> str:
    *others, last = (f"{batch:.0f}" for batch in batches)
    return f"{', '.join(others)} and {last}" if others else last
