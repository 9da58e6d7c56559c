"""Time to compress a gradient as deep gradient compression does, and to add up what was sent.

Imports torch; only for the measuring process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from stepscope.calibration.cold_memory import cold_arrays, parts_in_turn
from stepscope.calibration.timed import Timed, least

_SIZES = [1 << n for n in (12, 16, 18, 20, 22)] + [25 << 18]  # elements; the last are 25 MiB
_RATIO, _MOMENTUM = 0.01, 0.9
_LARGEST_STRIDE, _LEAST_FOUND = 100, 10  # of the sample; in the sample, above the threshold


def sparse_gradients() -> list[list[Any]]:
    """Rows of elements, and the times to compress, to add one worker's share, and to empty."""
    arrays = cold_arrays(3)
    for kept in arrays[1:]:
        kept.zero_()
    return [[float(elements), *_times(arrays, elements)] for elements in _SIZES]


def _times(arrays: Sequence[Tensor], elements: int) -> list[Timed]:
    parts, gradients = parts_in_turn(arrays, elements), parts_in_turn(arrays[:1], elements)

    def compress() -> tuple[Tensor, Tensor]:
        gradient, velocity, residual = next(parts)
        return take_largest(gradient, velocity, residual, _RATIO, _MOMENTUM)

    values, places = compress()
    return least(
        [
            compress,
            lambda: next(gradients)[0].index_add_(0, places, values),
            lambda: next(gradients)[0].zero_(),
        ]
    )


def take_largest(
    gradient: Tensor, velocity: Tensor, residual: Tensor, ratio: float, momentum: float
) -> tuple[Tensor, Tensor]:
    """Accumulate a gradient with momentum, and take out the largest values.

    Args:
        gradient: flat, float32.
        velocity: of the same shape; changed.
        residual: what was accumulated and not sent; changed.
        ratio: the share of the values to send.
        momentum: of the velocity.

    Returns:
        The values and their places.

    Source: Lin et al., "Deep gradient compression", ICLR 2018, algorithm 4: momentum correction and
    momentum factor masking; section 5: the threshold is that of a sample, and the choice is then
    made among what exceeds it.
    """
    velocity.mul_(momentum).add_(gradient)
    residual.add_(velocity)
    places = largest(residual, max(1, round(ratio * len(residual))))
    values = residual[places]
    residual[places] = 0
    velocity[places] = 0
    return values, places


def largest(values: Tensor, count: int) -> Tensor:
    """The places of about the `count` values of largest magnitude, always so many.

    Args:
        values: flat.
        count: how many.
    """
    magnitude = values.abs()
    found = (magnitude >= _threshold(magnitude, count)).nonzero().flatten()
    if len(found) < count:
        return magnitude.topk(count).indices
    return found[magnitude[found].topk(count).indices]


def _threshold(magnitude: Tensor, count: int) -> Tensor:
    """A bound that somewhat more than `count` values exceed, by a sample."""
    stride = max(1, min(_LARGEST_STRIDE, count // _LEAST_FOUND))
    sample = magnitude[::stride]
    wanted = min(len(sample), int(1.5 * count / stride) + 2)
    return sample.topk(wanted).values[-1]
