"""A quantity of a step as a line over the batch size, with a band; piecewise if needed.

    R(x) = a x + b        M(x) = c x + d        T(x) = x / R(x), at most 1 / a

Source: Yu et al., Skyline (UIST 2020), equations 1 to 3. The bands and the pieces are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import ceil

import numpy as np

# Two-sided 95 % points of Student's t for 1, 2, … degrees of freedom.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179,
            2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086)  # fmt: skip
_NORMAL = 1.96
_TINY = 1e-9


@dataclass(frozen=True)
class Piece:
    """One straight line.

    Attributes:
        start: the batch size that it holds from.
        slope: per sample.
        intercept: at batch size 0.
    """

    start: float
    slope: float
    intercept: float

    def first_with(self, rate: float, low: int) -> int | None:
        """The first whole batch size from `low` on with at most 1 / `rate` a sample, if any."""
        gain, needed = 1 - rate * self.slope, rate * self.intercept
        if gain * low >= needed - _TINY * abs(needed):
            return low
        return ceil(needed / gain * (1 - _TINY)) if gain > 0 else None


@dataclass(frozen=True)
class Model:
    """A quantity as a function of the batch size.

    Attributes:
        pieces: one line, or several in order of start.
        batches: the batch sizes measured.
        values: what was measured there.
        noise: standard deviation of one of the values.
        freedom: degrees of freedom that the noise was estimated with.
        own_error: relative error on a point held back; None where none was.
    """

    pieces: tuple[Piece, ...]
    batches: tuple[float, ...]
    values: tuple[float, ...]
    noise: float
    freedom: int
    own_error: float | None = None

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
        return tuple(one for one in starts if self.batches[0] < one < self.batches[-1])

    @property
    def linear(self) -> bool:
        """Whether it is a single line."""
        return len(self.pieces) == 1

    def at(self, batch: float) -> float:
        """The value at a batch size."""
        piece = [one for one in self.pieces if one.start <= batch] or [self.pieces[0]]
        return piece[-1].slope * batch + piece[-1].intercept

    def first_with(self, rate: float) -> int | None:
        """The smallest whole batch size at which it is at most 1 / `rate` a sample, if any."""
        starts = [1.0, *(piece.start for piece in self.pieces[1:]), float("inf")]
        for piece, (low, high) in zip(self.pieces, pairwise(starts), strict=True):
            first = piece.first_with(rate, ceil(low))
            if first is not None and first < high:
                return first
        return None

    def range(self, batch: float) -> tuple[float, float]:
        """Where the value is expected, with 95 % confidence: for the noise of the line, and not
        less than the error on the point held back."""
        value = self.at(batch)
        half = max(self._band(batch), (self.own_error or 0.0) * abs(value))
        return max(0.0, value - half), value + half

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
    if freedom < 1:
        return _STUDENT[0]
    return _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else _NORMAL
