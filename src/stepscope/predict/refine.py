"""Where to measure once more: where a line misses, or where a piece rests on two points alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from stepscope.predict.doubts import TIME_TOLERANCE
from stepscope.predict.fit import Model, fit_model, hold_back
from stepscope.predict.measured import Point, scatter

Gap = tuple[float, float]
_APART = 1.15  # closer ones differ by less than noise would let one tell


def refine(points: Sequence[Point]) -> int | None:
    """The batch size that would tell most about where run time is no line.

    Args:
        points: at least three, by batch size; the one measured last is held back.

    Returns:
        A batch size between two of them; None where the models predict what was measured.

    Example:
        >>> points = [Point(x, 80.0 * x, 0) for x in (8, 12)]
        >>> points += [Point(x, 60.0 * x, 0) for x in (16, 24, 32, 40)]
        >>> refine(points)  # 8 and 12 alone make a line of their own
        10
    """
    model = _model(points)
    for low, high in _gaps(model, _misses(model, points)):
        if high - low >= 2 and high >= _APART * low:
            return int(low + high) // 2
    return None


def _model(points: Sequence[Point]) -> Model:
    return fit_model(
        [one.batch for one in points],
        [one.ms for one in points],
        [one.error_ms for one in points],
    )


def _misses(model: Model, points: Sequence[Point]) -> bool:
    """Whether the model, or the one without the point held back, is wrong by more than noise."""
    worst = model.residual()
    for held in (one for one in points if one.held_back):
        others = _model([one for one in points if one is not held])
        worst = max(worst, hold_back(others, held.batch, held.ms))
    return worst > max(TIME_TOLERANCE, 3 * scatter(points))


def _gaps(model: Model, misses: bool) -> list[Gap]:
    """Between which batch sizes to measure, the best first."""
    if model.linear:
        return _beside_the_worst(model) if misses else []
    pieces = _batches_of_pieces(model)
    untested = [(piece[0], piece[1]) for piece in pieces if len(piece) == 2]
    between = [(left[-1], right[0]) for left, right in pairwise(pieces)]
    return untested + (between if misses else [])


def _batches_of_pieces(model: Model) -> list[list[float]]:
    starts = [*(piece.start for piece in model.pieces), float("inf")]
    return [
        [batch for batch in model.batches if low <= batch < high] for low, high in pairwise(starts)
    ]


def _beside_the_worst(model: Model) -> list[Gap]:
    """The gaps on both sides of the point that the line misses most, the wider first."""
    errors = [hold_back(model, *pair) for pair in zip(model.batches, model.values, strict=True)]
    worst = errors.index(max(errors))
    gaps = [gap for at, gap in enumerate(pairwise(model.batches)) if at in (worst - 1, worst)]
    return sorted(gaps, key=lambda gap: gap[0] / gap[1])
