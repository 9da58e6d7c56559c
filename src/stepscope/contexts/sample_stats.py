"""Count, sum, minimum, maximum, mean and standard deviation of samples, for many groups at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepscope.arrays import Counts, Floats, IntArray, Mask


@dataclass(frozen=True)
class SampleStats:
    """Statistics of samples, one row per group; integers are exact up to 2^53.

    Attributes:
        count: number of samples, int64, shape (groups,).
        sum, min, max: of the samples' values, float64, shape (groups,); 0 without samples.
        squares: sum of squared distances from the mean, float64, shape (groups,).
    """

    count: Counts
    sum: Floats
    min: Floats
    max: Floats
    squares: Floats

    def __len__(self) -> int:
        return len(self.count)

    @classmethod
    def empty(cls, groups: int) -> SampleStats:
        """No samples."""
        none = np.zeros(groups, np.float64)
        return cls(np.zeros(groups, np.int64), none, none, none, none)

    @classmethod
    def of(cls, groups: IntArray, values: NDArray[np.generic], size: int) -> SampleStats:
        """Statistics of `values` in `groups` 0 to `size` - 1, both of shape (samples,).

        Example:
            >>> SampleStats.of(np.array([0, 1, 0]), np.array([2, 5, 4]), 2).mean.tolist()
            [3.0, 5.0]
        """
        value = values.astype(np.float64)
        count = np.bincount(groups, minlength=size)
        total = _added(groups, value, size)
        deviation = value - (total / np.maximum(count, 1))[groups]
        low, high = _extremes(groups, value, value, size)
        return cls(count, total, low, high, _added(groups, deviation * deviation, size))

    @classmethod
    def joined(cls, parts: Sequence[SampleStats]) -> SampleStats:
        """The rows of several statistics, concatenated."""
        columns = ("count", "sum", "min", "max", "squares")
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in columns))

    @property
    def mean(self) -> Floats:
        """Mean of the samples, 0 without samples, shape (groups,)."""
        return self.sum / np.maximum(self.count, 1)

    @property
    def std(self) -> Floats:
        """Population standard deviation of the samples, shape (groups,)."""
        deviation: Floats = np.sqrt(self.squares / np.maximum(self.count, 1))
        return deviation

    def take(self, rows: NDArray[np.generic]) -> SampleStats:
        """The groups at `rows` (indices or a mask)."""
        return SampleStats(
            self.count[rows], self.sum[rows], self.min[rows], self.max[rows], self.squares[rows]
        )

    def where(self, kept: Mask) -> SampleStats:
        """The same groups; those not kept lose their samples."""
        return SampleStats(
            np.where(kept, self.count, 0),
            *(np.where(kept, part, 0.0) for part in (self.sum, self.min, self.max, self.squares)),
        )

    def grouped(self, groups: IntArray, size: int) -> SampleStats:
        """Rows merged: row i goes to group `groups[i]`.

        Source: Chan, Golub, LeVeque 1979, for the squares of parts with different means.
        """
        count = _added(groups, self.count, size).astype(np.int64)
        total = _added(groups, self.sum, size)
        deviation = self.mean - (total / np.maximum(count, 1))[groups]
        squares = _added(groups, self.squares + self.count * deviation * deviation, size)
        rows = np.flatnonzero(self.count)
        low, high = _extremes(groups[rows], self.min[rows], self.max[rows], size)
        return SampleStats(count, total, low, high, squares)


def _added(groups: IntArray, values: NDArray[np.generic], size: int) -> Floats:
    return np.bincount(groups, values, size).astype(np.float64)


def _extremes(groups: IntArray, low: Floats, high: Floats, size: int) -> tuple[Floats, Floats]:
    least, most = np.full(size, np.inf), np.full(size, -np.inf)
    with np.errstate(invalid="ignore"):  # NaN where the recorder gives no value
        np.minimum.at(least, groups, low)
        np.maximum.at(most, groups, high)
    return np.where(np.isinf(least), 0.0, least), np.where(np.isinf(most), 0.0, most)
