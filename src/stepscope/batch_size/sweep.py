"""Measure several batch sizes, round after round until the times are stable, and more in between
where they are not linear."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from stepscope.batch_size.measurement import BatchPoint, MeasuredBatch, combine
from stepscope.batch_size.refine_sweep import refine
from stepscope.batch_size.sweep_points import POINTS, WANTED, next_batch
from stepscope.errors import BatchError

Progress = Callable[[str, int, int], None]
_STABLE = 0.02


class NothingFits(BatchError):
    """Not even one sample fits into memory."""


class MeasureBatch(Protocol):
    """Measures a batch size once; None where it does not fit into memory."""

    def __call__(self, batch: int) -> MeasuredBatch | None:
        """In a fresh process."""


@dataclass
class Sweep:
    """The result of a sweep.

    Attributes:
        rounds: all measurements, by batch size in the order in which they were first made.
        too_large: the smallest batch size that ran out of memory.
        stable: whether the last round changed no time by more than 2 %; None after a single round.
    """

    rounds: dict[int, list[MeasuredBatch]] = field(default_factory=dict)
    too_large: int | None = None
    stable: bool | None = None

    def points(self) -> list[BatchPoint]:
        """One point a batch size, by size; beyond three, the one measured last is held back."""
        order = list(self.rounds)
        held = set(order[POINTS:][-1:])
        return sorted(
            (combine(rounds, batch in held) for batch, rounds in self.rounds.items()),
            key=lambda point: point.batch,
        )


def sweep(
    measure: MeasureBatch,
    start: int,
    *,
    wanted: int = WANTED,
    extra: int = 0,
    most_rounds: int = 1,
    progress: Progress = lambda words, done, total: None,
) -> Sweep:
    """Measure from `start` on.

    Args:
        measure: measures one batch size.
        start: the user's own.
        wanted: how many batch sizes.
        extra: how many more at most, where run time is not linear.
        most_rounds: rounds to make at most; the first that changes nothing is the last.
        progress: called with what is being done, how much of it is done and how much there is.

    Returns:
        The measurements.

    Raises:
        NothingFits: not even one sample does.
        BatchError: the script fails.
    """
    found = Sweep()
    while (batch := next_batch(start, found.rounds, found.too_large, wanted)) is not None:
        progress(f"batch size {batch}", len(found.rounds), wanted * most_rounds)
        one = measure(batch)
        if one is None:
            found.too_large = min(batch, found.too_large or batch)
        else:
            found.rounds[batch] = [one]
    if not found.rounds:
        raise NothingFits(
            f"batch size {found.too_large} does not fit into memory; "
            "make the model or its inputs smaller"
        )
    for number in range(1, most_rounds):
        before = _medians(found)
        _again(found, measure, number, most_rounds, progress)
        found.stable = _agree(before, _medians(found))
        if found.stable:
            break
    _refine(found, measure, extra, progress)
    return found


def _refine(found: Sweep, measure: MeasureBatch, extra: int, progress: Progress) -> None:
    """Between the points, where a line misses by more than the noise that the rounds showed."""
    times = max(map(len, found.rounds.values()))
    for number in range(extra if len(found.rounds) >= POINTS else 0):
        batch = refine(found.points())
        if batch is None:
            return
        for count in range(times):
            progress(f"batch size {batch} too", number * times + count, extra * times)
            one = measure(batch)
            if one is not None:
                found.rounds.setdefault(batch, []).append(one)


def _again(
    found: Sweep, measure: MeasureBatch, number: int, most_rounds: int, progress: Progress
) -> None:
    for place, (batch, rounds) in enumerate(found.rounds.items()):
        done = number * len(found.rounds) + place
        progress(f"batch size {batch} again", done, most_rounds * len(found.rounds))
        one = measure(batch)
        if one is not None:
            rounds.append(one)


def _medians(found: Sweep) -> dict[int, float]:
    return {point.batch: point.ms for point in found.points()}


def _agree(before: dict[int, float], after: dict[int, float]) -> bool:
    return all(abs(after[batch] - ms) <= _STABLE * ms for batch, ms in before.items())
