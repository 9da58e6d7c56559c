"""The result of one measurement."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

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
        mean = statistics.fmean(self.facts.get("samples") or [0])
        return mean or None

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
