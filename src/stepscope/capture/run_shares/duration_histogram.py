"""Durations of many repetitions in little memory."""

from __future__ import annotations

import math

_BINS_PER_OCTAVE = 8


class DurationHistogram:
    """Count and sum of durations by length, in bins 9 % wide."""

    def __init__(self) -> None:
        self._bins: dict[int, list[int]] = {}
        self.total_ns = 0

    def add(self, duration_ns: int) -> None:
        """Count one duration."""
        self.total_ns += duration_ns
        key = int(math.log2(duration_ns) * _BINS_PER_OCTAVE) if duration_ns > 0 else -1
        found = self._bins.setdefault(key, [0, 0])
        found[0] += 1
        found[1] += duration_ns

    def merge(self, other: DurationHistogram) -> None:
        """Count all durations of another one."""
        self.total_ns += other.total_ns
        for key, (count, total) in other._bins.items():
            found = self._bins.setdefault(key, [0, 0])
            found[0] += count
            found[1] += total

    def median_ns(self) -> int:
        """The mean of the bin that holds the median; 0 if nothing was counted."""
        left = sum(count for count, _ in self._bins.values()) / 2
        for _, (count, total) in sorted(self._bins.items()):
            left -= count
            if left <= 0:
                return total // count
        return 0

    def cut_at(self, most_ns: int, to_ns: int) -> int:
        """The sum where each duration longer than `most_ns` counts as `to_ns`."""
        means = ((count, total, total / count) for count, total in self._bins.values())
        return sum(count * to_ns if mean > most_ns else total for count, total, mean in means)
