"""The profile of an entry file over the batch size: points, models, predictions, warnings."""

import statistics
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypedDict

from stepscope.models.batch_size.fit import (
    Model,
    check_failed,
    fit_model,
    fit_peaks,
    memory_warnings,
    time_tolerance,
    time_warnings,
)
from stepscope.models.batch_size.measurement import BatchPoint, Reserve, whole_points
from stepscope.record.batch_size.request import DeviceFacts

_KNEE = 0.9  # of the limit of throughput: a suggestion reaches it
_LARGEST = 10**7  # batch size that is searched for; beyond it no answer helps
REACH = 2  # times beyond what was measured; predictions further out are not acted on


class BatchPrediction(TypedDict, total=False):
    """Throughput and memory at a batch size; times and bytes are missing without a model of them."""

    batch: int
    extrapolated: bool  # whether it is outside the batch sizes that were measured
    ms: float
    ms_range: list[float]
    throughput: float | None  # samples a second; None if no time was measured
    throughput_range: list[float | None]
    bytes: int
    bytes_range: list[int]
    reserved: int  # what a caching allocator holds at the peak of `bytes`, on a device
    reserved_range: list[int]
    memory: dict[str, int]  # the peak by kind, where there is a breakdown


@dataclass(frozen=True)
class Profile:
    """Run time and memory over the batch size."""

    points: tuple[BatchPoint, ...]
    time: Model | None  # milliseconds a step
    memory: Model | None  # peak bytes
    too_large: int | None = None
    # What it was measured on: type, name, memory_bytes.
    device: DeviceFacts = field(default_factory=DeviceFacts)
    warnings: tuple[str, ...] = ()

    @property
    def samples_per_batch(self) -> float:
        """Samples that a step processes, as a multiple of the batch size: 4 if it accumulates
        gradients over four batches; 1 if that is unknown."""
        known = [point.samples / point.batch for point in self.points if point.samples]
        return statistics.median(known) if known else 1.0

    @property
    def max_throughput(self) -> float | None:
        """Limit of samples per second for large batches, 1 / a, or the throughput of a smaller one
        if that is more; None if time does not grow."""
        limit = self._limit
        return limit and max(limit, *(point.throughput for point in self.points))

    @property
    def _limit(self) -> float | None:
        """The same by the lines alone."""
        if self.time is None or self.time.slope <= 0:
            return None
        seen = () if self.time.linear else self.time.batches
        rates = [1 / self.time.slope, *(batch / self.time.at(batch) for batch in seen)]
        return 1e3 * self.samples_per_batch * max(rates)

    @property
    def least(self) -> int:
        """The smallest batch size that was measured."""
        return min(point.batch for point in self.points)

    @property
    def most(self) -> int:
        """The largest batch size that was measured."""
        return max(point.batch for point in self.points)

    @property
    def mispredicted(self) -> bool:
        """Whether a model mispredicted the point that was held back."""
        return check_failed(self.time) or check_failed(self.memory)

    @property
    def fit_error(self) -> float | None:
        """Relative error of the run time predicted for the point held back."""
        return self.time.own_error if self.time else None

    def predict(self, batch: int) -> BatchPrediction:
        """Throughput and memory at a batch size, with their ranges."""
        result: BatchPrediction = {"batch": batch, "extrapolated": self.extrapolates(batch)}
        if self.time:
            low, high = self.time.range(batch)
            ms = self.time.at(batch)
            samples = self.samples_per_batch * batch
            result |= {
                "ms": ms,
                "ms_range": [low, high],
                "throughput": _rate(samples, ms),
                "throughput_range": [_rate(samples, high), _rate(samples, low)],
            }
        if self.memory:
            low, high = self.memory.range(batch)
            result |= {
                "bytes": round(max(self.memory.at(batch), 0.0)),
                "bytes_range": [round(low), round(high)],
            }
            if self.reserve.counts:
                least, most = self.reserve.range(batch)
                result["reserved"] = round(result["bytes"] * self.reserve.at(batch))
                result["reserved_range"] = [round(low * least), round(high * most)]
        return result

    @cached_property
    def reserve(self) -> Reserve:
        """What the allocator of the device that was measured on holds beyond what tensors take."""
        is_replayed = self.time is None  # where nothing ran
        return Reserve.of(self.points, self.device.get("type", "cpu") != "cpu", is_replayed)

    def batch_for_throughput(self, throughput: float) -> int | None:
        """The smallest batch size that reaches a throughput; None where none does."""
        if self.time is None or throughput <= 0:
            return None
        return self.time.first_with(throughput / self.samples_per_batch / 1e3)

    def batch_for_bytes(self, capacity: float, needs: Callable[[int], float] | None = None) -> int | None:
        """The largest batch size whose step runs within `capacity`; None where none does. By
        default it `needs` the bytes that the device that was measured on has to reserve."""
        memory, full = self.memory, self.reserve.when_full
        if memory is None:
            return None
        needed = needs or (lambda batch: memory.least(batch) * full(batch))
        return bisect_left(range(1, _LARGEST + 1), True, key=lambda batch: needed(batch) > capacity) or None

    def largest_fitting(self, capacity: float | None) -> int | None:
        """The largest batch size that memory allows, as far as a limit is known."""
        limits = [self.batch_for_bytes(capacity) if capacity else None]
        limits.append(self.too_large - 1 if self.too_large else None)
        return min((limit for limit in limits if limit is not None), default=None)

    def extrapolates(self, batch: int) -> bool:
        """Whether a batch size is outside the measured range."""
        return not self.points or not self.least <= batch <= self.most

    def trusts(self, batch: int) -> bool:
        """Whether a prediction may be acted on: at most twice as far as was measured, in either
        direction, and nowhere if a model mispredicted the point that was held back."""
        is_known = bool(self.points) and not self.mispredicted
        return is_known and self.least <= REACH * batch and batch <= REACH * self.most

    def suggestion(self, capacity: float | None = None) -> int | None:
        """The smallest batch size with 90 % of the limit of throughput, or the largest that memory
        allows before that; None where no prediction there can be trusted."""
        if self._limit is None:
            return None
        batch, most = self.batch_for_throughput(_KNEE * self._limit), self.largest_fitting(capacity)
        reached = min((size for size in (batch, most) if size is not None), default=None)
        return reached if reached is not None and self.trusts(reached) else None

    def to_json(self, at: Sequence[int] = ()) -> dict[str, Any]:
        """As `stepscope batch --json` has it; None where three points could not be had."""
        return {
            "points": [point.to_json() for point in self.points],
            "run_time": _coefficients(self.time, "a_ms", "b_ms"),
            "memory": _coefficients(self.memory, "c_bytes", "d_bytes"),
            "samples_per_batch": self.samples_per_batch,
            "max_throughput": self.max_throughput,
            "predictions": [self.predict(batch) for batch in at],
            "fit_error": self.fit_error,
            "memory_fit_error": self.memory.own_error if self.memory else None,
            "too_large": self.too_large,
            "device": self.device,
            "warnings": list(self.warnings),
        }


def make_profile(
    points: Sequence[BatchPoint],
    too_large: int | None = None,
    device: DeviceFacts | None = None,
    warnings: Sequence[str] = (),
) -> Profile:
    """Fit the models to what was measured, by batch size; none to fewer than two points. A point
    held back first tests the models made from the others, then joins them."""
    measured, points, notes = points, whole_points(points), list(warnings)
    if left := [point for point in measured if point not in points]:
        most = f"the data has no more than {left[0].samples:.0f} samples for a step"
        notes.append(f"batch sizes beyond {points[-1].batch} are left out: {most}")
    if len(points) < 2:
        notes.append("fewer than two batch sizes fit into memory: no prediction is possible")
        return Profile(tuple(points), None, None, too_large, device or {}, tuple(notes))
    if len(points) < 3:
        notes.append("only two batch sizes could be measured, so the ranges are not meaningful")
    time, memory = fit_time(points), _fitted(points, "bytes", _memory_model)
    notes += [*time_warnings(time, points), *memory_warnings(memory)]
    return Profile(tuple(points), time, memory, too_large, device or {}, tuple(notes))


def fit_time(points: Sequence[BatchPoint]) -> Model:
    """Run time over the batch size, with the error on what was held back."""
    tolerance = time_tolerance(points)
    return _fitted(points, "ms", lambda some: _time_model(some, tolerance))


def _time_model(points: Sequence[BatchPoint], tolerance: float) -> Model:
    rows = ((point.batch, point.ms, point.error_ms, point.repeats) for point in points)
    batches, times, errors, repeats = zip(*rows, strict=True)
    return fit_model(batches, times, errors, repeats, tolerance)


def _memory_model(points: Sequence[BatchPoint]) -> Model:
    return fit_peaks([point.batch for point in points], [float(point.bytes) for point in points])


def _fitted(
    points: Sequence[BatchPoint], quantity: str, fit: Callable[[Sequence[BatchPoint]], Model]
) -> Model:
    kept, held = ([point for point in points if point.held_back == side] for side in (False, True))
    error = None
    if held and len(kept) >= 2:
        trial = fit(kept)
        values = [(point.batch, getattr(point, quantity)) for point in held]
        error = max(abs(trial.at(batch) - value) / value for batch, value in values)
    return replace(fit(points), own_error=error)


def _rate(samples: float, ms: float) -> float | None:
    """Samples per second; None if no time was measured."""
    return 1e3 * samples / ms if ms > 0 else None


def _coefficients(model: Model | None, slope: str, intercept: str) -> dict[str, Any] | None:
    if model is None:
        return None
    line = {slope: model.slope, intercept: model.intercept}
    starts = [{"from_batch": p.start, slope: p.slope, intercept: p.intercept} for p in model.pieces]
    return line if model.linear else {**line, "pieces": starts}


def suggestions(profile: Profile, batch: int, capacity: float | None = None) -> list[BatchPrediction]:
    """Batch sizes to offer instead of the current one.

    First the one that comes near the limit of throughput, then twice and half the current one, then
    the largest that fits. None exceeds memory or lies where predictions are not trusted
    (`Profile.trusts`); where the prediction of the held-back point failed there are none at all.
    """
    most = profile.largest_fitting(capacity)
    wanted = [profile.suggestion(capacity), 2 * batch, max(batch // 2, 1), most]
    sizes = dict.fromkeys(size for size in wanted if size and size != batch)
    fitting = (size for size in sizes if most is None or size <= most)
    return [profile.predict(size) for size in fitting if profile.trusts(size)]
