"""The result of one measurement: times, memory in use, and what PyTorch's allocator reserves for it."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import log
from typing import Any

import numpy as np

from stepscope.record.batch_size.request import RunFacts


@dataclass(frozen=True)
class MeasuredBatch:
    """One batch size, measured once in a separate process."""

    batch: int
    steps_ms: tuple[float, ...]  # the length of each timed step, those with the longest inputs
    bytes: int  # the peak of what torch's allocator handed out
    facts: RunFacts = field(default_factory=RunFacts, repr=False)

    @property
    def ms(self) -> float:
        """The median step."""
        return statistics.median(self.steps_ms)

    @property
    def samples(self) -> float | None:
        """Samples per step that data loaders handed out; None if there were no loaders."""
        return statistics.fmean(self.facts.get("samples") or [0]) or None

    @property
    def watts(self) -> float | None:
        """Mean power by the hardware's counters; None if there are none."""
        reading = self.facts.get("power")
        return reading["watts"] if reading else None


@dataclass(frozen=True)
class BatchPoint:
    """One batch size, measured once or several times."""

    batch: int
    ms: float  # the median step of the median round
    bytes: int
    error_ms: float = 0.0
    repeats: int = 1  # rounds, or steps where there was one round
    held_back: bool = False  # whether models are tested on it before it joins them
    samples: float | None = None  # samples per step as observed; None if unknown, then the batch size counts
    watts: float | None = None  # mean power by the hardware's counters; None if there are none
    reserved: int = 0  # the most bytes that a caching allocator held for it; 0 if unknown

    @property
    def joules(self) -> float | None:
        """Energy per sample; None if there are no counters."""
        return None if self.watts is None else self.watts / self.throughput

    @property
    def throughput(self) -> float:
        """Samples per second."""
        return 1e3 * (self.samples or self.batch) / self.ms

    def to_json(self) -> dict[str, Any]:
        """As `stepscope batch --json` has it."""
        return {**asdict(self), "throughput": self.throughput, "joules": self.joules}


def scatter(points: Sequence[BatchPoint]) -> float:
    """The mean standard error of the times, relative."""
    return statistics.mean(point.error_ms / point.ms for point in points)


_WHOLE = 0.9  # of the samples that a step has in proportion; chosen: fewer are no whole batch


def whole_points(points: Sequence[BatchPoint]) -> list[BatchPoint]:
    """The points without those for which the data has too few samples: larger ones than two or more
    whose steps have all samples in proportion."""
    ratios = {point.batch: point.samples / point.batch for point in points if point.samples}
    whole = [batch for batch, ratio in ratios.items() if ratio >= _WHOLE * max(ratios.values())]
    return [one for one in points if len(whole) < 2 or one.batch <= max(whole) or one.batch not in ratios]


def combine(rounds: Sequence[MeasuredBatch], held_back: bool = False) -> BatchPoint:
    """One point of all measurements at a batch size."""
    medians = [measured.ms for measured in rounds]
    samples = medians if len(medians) > 2 else [ms for measured in rounds for ms in measured.steps_ms]
    powers = [measured.watts for measured in rounds if measured.watts is not None]
    return BatchPoint(
        rounds[0].batch,
        statistics.median(medians),
        max(measured.bytes for measured in rounds),
        _error_of_median(samples),
        len(samples),
        held_back,
        rounds[0].samples,
        statistics.median(powers) if powers else None,
        max(measured.facts.get("reserved_bytes") or 0 for measured in rounds),
    )


def _error_of_median(samples: Sequence[float]) -> float:
    """From the median distance to the median, which a few slow steps do not move."""
    if len(samples) < 2:
        return 0.0
    middle = statistics.median(samples)
    spread = 1.4826 * statistics.median(abs(sample - middle) for sample in samples)
    return float(1.2533 * spread / len(samples) ** 0.5)


_WIDER = 0.05  # of a ratio: ranges so much wider than their neighbors' ratios hold 89 % of 47 sizes
# Median, 10 % and 80 % of 87 ratios of eight models on an H200; each model's own is within them.
UNMEASURED = 1.10, 1.03, 1.20  # reserved over allocated bytes


@dataclass(frozen=True)
class Reserve:
    """Reserved over allocated bytes over the batch size.

    The ratio was measured at each size, and is interpolated over the logarithm of the size. A full
    device returns segments that are not in use before an allocation fails: there the least of the
    ratio at that size and the median of all counts. On an H200 reserved memory of 47 sizes that were
    not fitted is off by 6.4 % on average.
    """

    # batches, ratios: as measured, by batch size; empty if not.
    batches: tuple[int, ...] = ()
    ratios: tuple[float, ...] = ()
    counts: bool = True  # whether an allocator that caches is used; elsewhere every ratio is 1
    least: bool = False  # whether the ratios are of the least that runs already, as a replay finds it

    @classmethod
    def of(cls, points: Sequence[BatchPoint], counts: bool, least: bool = False) -> "Reserve":
        measured = sorted(points, key=lambda point: point.batch)
        known = [point for point in measured if point.reserved and point.bytes]
        ratios = tuple(max(point.reserved / point.bytes, 1.0) for point in known)
        return cls(tuple(point.batch for point in known), ratios, counts=counts, least=least)

    def at(self, batch: float) -> float:
        """Where the device has room."""
        if not self.counts:
            return 1.0
        if not self.batches:
            return UNMEASURED[0]
        return float(np.interp(log(batch), np.log(self.batches), self.ratios))

    def when_full(self, batch: float) -> float:
        """Where the device has none left: the least with which the step runs."""
        if self.least or not self.batches:
            return self.at(batch)
        return min(self.at(batch), statistics.median(self.ratios))

    def range(self, batch: float) -> tuple[float, float]:
        """Where the ratio is expected."""
        if not self.counts:
            return 1.0, 1.0
        if not self.batches:
            return UNMEASURED[1:]
        place = int(np.searchsorted(self.batches, batch))
        near = [*self.ratios[max(place - 1, 0) : place + 1], self.when_full(batch)]
        return max(min(near) - _WIDER, 1.0), max(near) + _WIDER
