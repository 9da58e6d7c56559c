"""Which batch sizes to measure: several, round after round until the times are stable, and more in
between where they are not linear.

As SKYLINE does: the user's own first, then larger ones by a constant; smaller ones where memory
runs out. Beyond SKYLINE's three a quarter and a half of the user's own, as people go both ways from
it. The last one is held back, to check how well the model of the others predicts.

On a GPU three neighboring sizes say little of larger ones: the CPU limits small steps, and the
device many times larger ones. There both ends come first, then the middle of the gap in which time
or memory is least certain.

Source: Yu et al., Skyline (UIST 2020), "Making Performance Predictions".
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import log

from stepscope.errors import BatchError
from stepscope.models.batch_size.entry_profile import fit_time
from stepscope.models.batch_size.fit import convex_range, time_tolerance
from stepscope.models.batch_size.measurement import BatchPoint, MeasuredBatch, combine
from stepscope.record.batch_size.request import Effort

POINTS = 3  # make a line and its error, as in SKYLINE
WANTED = POINTS + 2
_LARGEST = 1 << 20  # batch size that is tried
_APART = 1.15  # closer ones differ by less than noise
Progress = Callable[[str, int, int], None]
_STABLE = 0.02  # relative change of times between rounds


def next_batch(
    start: int, measured: Collection[int], too_large: int | None = None, wanted: int = WANTED
) -> int | None:
    """The batch size to try next; None if there are enough, or no more that can fit."""
    if len(measured) >= wanted:
        return None
    for batch in _candidates(start, wanted, too_large, measured):
        if batch not in measured and (too_large is None or batch < too_large):
            return batch
    return None


def _candidates(start: int, wanted: int, too_large: int | None, measured: Collection[int]) -> list[int]:
    if too_large is not None and too_large <= start:
        return _below(too_large, measured)
    step = max(1, round(start / 2))
    up = [start + step * count for count in range(wanted)]
    below = [start // part for part in (4, 2) if start >= part]
    less = max(1, start // 4)
    down = [start - less * count for count in range(1, start // less)]
    rest = list(range(start - 1, 0, -1))[: 2 * wanted]
    return [*up[:POINTS], *below, *up[POINTS:], *down, *rest]


def _below(too_large: int, measured: Collection[int]) -> list[int]:
    """Not even the first fits: halve until one does, then go down from there."""
    top = max(measured, default=0)
    if not top:
        return [too_large // 2] if too_large > 1 else []
    less = max(1, top // 4)
    return [*range(top - less, 0, -less), *range(top - 1, 0, -1)]


_SMALL_END = 4  # of the user's own size: half as far as people go below it
_OF_MEMORY = 0.85  # of the device's at the large end: what is reserved exceeds what is in use
_LONGEST_STEP_MS, _TIMES_LONGER = 1000.0, 4  # at the large end; chosen: nobody waits longer for it
_CERTAIN = 0.02  # relative width of what a convex curve may do; chosen: as noise


def next_on_device(
    points: Sequence[BatchPoint], start: int, capacity: int, too_large: int | None
) -> int | None:
    """The batch size to try next on a device with its own memory; None where all is certain.

    Args:
        points: at least one, by batch size.
        capacity: bytes of the device.
    """
    if len(points) == 1:
        wanted = (max(1, start // _SMALL_END), 2 * start)
        return next((one for one in wanted if one != start and one < (too_large or one + 1)), None)
    if len(points) == 2:
        far = _large_end(points, capacity, too_large)
        if far is not None:
            return far
    gaps = [round((low.batch * high.batch) ** 0.5) for low, high in pairwise(points)]
    return widest(points, [batch for batch in gaps if all(batch != point.batch for point in points)])


def _large_end(points: Sequence[BatchPoint], capacity: int, too_large: int | None) -> int | None:
    """As far as memory and patience reach, by the line through two points."""
    small, own = points[0], points[-1]
    more = own.batch - small.batch
    a_sample = max((own.bytes - small.bytes) / more, 1e-9), max((own.ms - small.ms) / more, 1e-9)
    longest = max(_LONGEST_STEP_MS, _TIMES_LONGER * own.ms)
    room = (_OF_MEMORY * capacity - own.bytes) / a_sample[0], (longest - own.ms) / a_sample[1]
    far = min(own.batch + int(max(min(room), 0)), _LARGEST)
    if too_large is not None:
        far = min(far, (own.batch + too_large) // 2)
    return far if far >= _APART * own.batch else None


def widest(points: Sequence[BatchPoint], candidates: Sequence[int]) -> int | None:
    """The candidate at which time or memory may differ most from what points say; None where all
    are certain within 2 %."""
    batches = [point.batch for point in points]
    columns = [point.ms for point in points], [float(point.bytes) for point in points]
    best, most = None, _CERTAIN
    for batch in candidates:
        ranges = [convex_range(batches, column, batch) for column in columns]
        width = max((high - low) / high if high else 0.0 for low, high in ranges)
        if width > most:
            best, most = batch, width
    return best


@dataclass(frozen=True)
class Plan:
    """The extent of a sweep."""

    points: int = WANTED  # batch sizes; the last one is held back to find the error
    extra: int = 3  # further ones at most, where run time is no line
    rounds: int = 3  # at most; the first that changes nothing is the last
    effort: Effort = field(default_factory=Effort)
    timeout_s: float = 600.0  # seconds after which a measurement is given up as hung
    breakdown: bool = True  # also find what each line, module and operator costs
    estimate: bool = True  # where there is no GPU, also estimate memory without computing


# For an editor, which wants an answer while the file is still in mind.
QUICK = Plan(
    points=POINTS + 1,
    extra=0,
    rounds=1,
    effort=Effort(warmup=2, memory=1, least=3, seconds=0.2),
    timeout_s=60.0,
    estimate=False,
)


def refine(points: Sequence[BatchPoint]) -> int | None:
    """The batch size that shows most about where run time is not linear; None where models predict it.

    Args:
        points: at least three, by batch size; the one measured last is held back.

    Example:
        >>> points = [BatchPoint(x, 80.0 * x, 0) for x in (8, 12)]
        >>> points += [BatchPoint(x, 60.0 * x, 0) for x in (16, 24, 32, 40)]
        >>> refine(points)  # the other kernel begins between 12 and 16
        14
    """
    model, tolerance = fit_time(points), time_tolerance(points)
    if model.linear and max(model.residual(), model.own_error or 0.0) <= tolerance:
        return None
    return _between(points)


def _between(points: Sequence[BatchPoint]) -> int | None:
    """The middle of the gap where most batch sizes are most uncertain."""
    best, most = None, 0.0
    for at, (low, high) in enumerate(pairwise(points)):
        doubt = _disagreement(points, at)
        wide = high.batch - low.batch >= 2 and high.batch >= _APART * low.batch
        if wide and doubt > time_tolerance(points) / 2:
            weight = doubt * log(high.batch / low.batch)
            if weight > most:
                best, most = (low.batch + high.batch) // 2, weight
    return best


def _disagreement(points: Sequence[BatchPoint], at: int) -> float:
    """How far the middle of a gap is from where the lines of both neighboring gaps lead,
    relative; the nearer of the two counts, as the other may cross a step of its own."""
    low, high = points[at], points[at + 1]
    middle = (low.ms + high.ms) / 2
    batch = (low.batch + high.batch) / 2
    led = [_led(points[at - 1] if at else BatchPoint(0, 0.0, 0), low, batch)]
    if at + 2 < len(points):
        led.append(_led(high, points[at + 2], batch))
    return min(abs(value / middle - 1) for value in led)


def _led(left: BatchPoint, right: BatchPoint, batch: float) -> float:
    slope = (right.ms - left.ms) / (right.batch - left.batch)
    return right.ms + slope * (batch - right.batch)


class NothingFits(BatchError):
    """Not even one sample fits into memory."""


MeasureBatch = Callable[[int], MeasuredBatch | None]
"""Measures a batch size once, in a fresh process; None where it does not fit into memory."""


@dataclass
class Sweep:
    """The result of a sweep."""

    # all measurements, by batch size in the order in which they were first made
    rounds: dict[int, list[MeasuredBatch]] = field(default_factory=dict)
    too_large: int | None = None
    # whether the last round changed no time by more than 2 %; None after a single round
    stable: bool | None = None

    def add(self, batch: int, measured: MeasuredBatch | None) -> bool:
        """Add a measurement; False where the batch size did not fit."""
        if measured is not None:
            self.rounds.setdefault(batch, []).append(measured)
        return measured is not None

    @property
    def device_bytes(self) -> int | None:
        """Memory of the device that was measured on; None for a CPU, or if it is unknown."""
        measured = next(iter(self.rounds.values()), None)
        device = measured[0].facts.get("device", {}) if measured else {}
        return None if device.get("type", "cpu") == "cpu" else device.get("memory_bytes")

    def points(self) -> list[BatchPoint]:
        """One point a batch size, by size; beyond three, the one measured last is held back."""
        order = list(self.rounds)
        held = set(order[POINTS:][-1:])
        return sorted(
            (combine(rounds, batch in held) for batch, rounds in self.rounds.items()),
            key=lambda point: point.batch,
        )


def _next(result: Sweep, start: int, wanted: int) -> int | None:
    capacity, own_fits = result.device_bytes, start in result.rounds
    if capacity is None or not own_fits or len(result.rounds) >= wanted:
        return next_batch(start, result.rounds, result.too_large, wanted)
    return next_on_device(result.points(), start, capacity, result.too_large)


def sweep(
    measure: MeasureBatch, start: int, plan: Plan, progress: Progress = lambda words, done, total: None
) -> Sweep:
    """Measure from `start` on.

    Args:
        progress: called with what is being done, how much of it is done and how much there is.

    Raises:
        NothingFits: not even one sample does.
        BatchError: the script fails.
    """
    result = Sweep()
    while (batch := _next(result, start, plan.points)) is not None:
        progress(f"batch size {batch}", len(result.rounds), plan.points * plan.rounds)
        if not result.add(batch, measure(batch)):
            result.too_large = min(batch, result.too_large or batch)
    if not result.rounds:
        raise NothingFits(
            f"batch size {result.too_large} does not fit into memory; make the model or its inputs smaller"
        )
    for number in range(1, plan.rounds):
        before = [point.ms for point in result.points()]
        _again(result, measure, number, plan.rounds, progress)
        pairs = zip(before, result.points(), strict=True)
        result.stable = all(abs(point.ms - ms) <= _STABLE * ms for ms, point in pairs)
        if result.stable:
            break
    _refine(result, measure, plan.extra, progress)
    return result


def _refine(result: Sweep, measure: MeasureBatch, extra: int, progress: Progress) -> None:
    """Between the points, where a line misses by more than the noise that the rounds showed."""
    times = max(map(len, result.rounds.values()))
    for number in range(extra if len(result.rounds) >= POINTS else 0):
        batch = refine(result.points())
        if batch is None:
            return
        for count in range(times):
            progress(f"batch size {batch} too", number * times + count, extra * times)
            result.add(batch, measure(batch))


def _again(result: Sweep, measure: MeasureBatch, number: int, most_rounds: int, progress: Progress) -> None:
    for place, batch in enumerate(result.rounds):
        done = number * len(result.rounds) + place
        progress(f"batch size {batch} again", done, most_rounds * len(result.rounds))
        result.add(batch, measure(batch))
