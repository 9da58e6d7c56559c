"""The metrics of the calling-context tree, and statistics of their samples at its nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.base.arrays import Counts, Floats, IntArray, Mask

LAUNCH_METRICS = ("blocks", "threads", "registers", "shared_bytes", "occupancy")  # of each kernel's launch
STATISTICS = ("count", "sum", "min", "max", "squares")


class Metric(msgspec.Struct, frozen=True):
    """A metric of the nodes."""

    name: str  # its key in the tree's metrics
    unit: str  # `ns`, `B`, or empty for a number
    meaning: str  # what one sample measures
    additive: bool = True  # whether a node's inclusive value is the sum over its subtree


METRICS = {
    metric.name: metric
    for metric in (
        Metric("cpu_ns", "ns", "time of a call on its CPU thread, without nested calls"),
        Metric("call_ns", "ns", "time of a call on its CPU thread, with nested calls", False),
        Metric("device_ns", "ns", "duration of a device operation"),
        Metric("compiled_ns", "ns", "duration of a compiled operation, in the recorded windows"),
        Metric("launches", "", "device operations that a call launched"),
        Metric("launch_delay_ns", "ns", "time from a call to the start of the device work it launched"),
        Metric("allocated_bytes", "B", "an allocation"),
        Metric("freed_bytes", "B", "a release"),
        Metric("thread_cpu_ns", "ns", "CPU time of the calling thread, without waiting"),
        Metric("sampled_cpu_ns", "ns", "CPU time since the thread's previous sample"),
        Metric("sampled_real_ns", "ns", "time since the thread's previous sample"),
        Metric("stalls", "", "samples of an instruction, by stall reason of its warp"),
        Metric("latency_stalls", "", "stall samples in whose cycle nothing was issued"),
        Metric("blocks", "", "thread blocks of a kernel's launch"),
        Metric("threads", "", "threads of a kernel's launch: its parallelism"),
        Metric("registers", "", "registers of each thread of a kernel"),
        Metric("shared_bytes", "B", "shared memory of each block of a kernel"),
        Metric("occupancy", "", "estimated achieved occupancy of a kernel, 0 to 1"),
    )
}


@dataclass(frozen=True)
class SampleStats:
    """Statistics of samples, one row per group; integers are exact up to 2^53."""

    count: Counts  # number of samples, int64, shape (groups,)
    sum: Floats  # of the samples' values, float64, shape (groups,); 0 without samples
    min: Floats  # of the samples' values, float64, shape (groups,); 0 without samples
    max: Floats  # of the samples' values, float64, shape (groups,); 0 without samples
    squares: Floats  # sum of squared distances from the mean, float64, shape (groups,)

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
        once = cls(np.ones(len(value), np.int64), value, value, value, np.zeros(len(value)))
        return once.grouped(groups, size)

    @classmethod
    def joined(cls, parts: Sequence[SampleStats]) -> SampleStats:
        """The rows of several statistics, concatenated."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in STATISTICS))

    @property
    def mean(self) -> Floats:
        """Mean of the samples, 0 without samples, shape (groups,)."""
        return self.sum / np.maximum(self.count, 1)

    @property
    def std(self) -> Floats:
        """Population standard deviation of the samples, shape (groups,)."""
        return np.sqrt(self.squares / np.maximum(self.count, 1))

    def take(self, rows: NDArray[np.generic]) -> SampleStats:
        """The groups at `rows` (indices or a mask)."""
        return SampleStats(*(getattr(self, name)[rows] for name in STATISTICS))

    def where(self, kept: Mask) -> SampleStats:
        """The same groups; those not kept lose their samples."""
        return SampleStats(*(np.where(kept, getattr(self, name), 0) for name in STATISTICS))

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
