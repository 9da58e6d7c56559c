"""Time to compress a gradient as deep gradient compression does, and to add up what was sent.

Imports torch; only for the measuring process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from stepscope.calibration.timed import least

_SIZES = [1 << n for n in (12, 16, 18, 20, 22)] + [25 << 18]  # elements; the last are 25 MiB
_RATIO, _MOMENTUM = 0.01, 0.9
_MOST_STRIDE, _LEAST_FOUND = 100, 10  # of the sample; in the sample, above the threshold


def sparse_gradients() -> list[list[Any]]:
    """Rows of elements, time to compress them, and time to add one worker's share."""
    return [_row(elements) for elements in _SIZES]


def _row(elements: int) -> list[Any]:
    gradient = torch.randn(elements)
    compress = compressor(gradient)
    places = compress()
    total, values = torch.zeros(elements), gradient[places]
    return [float(elements), *least([compress, lambda: total.index_add_(0, places, values)])]


def compressor(gradient: torch.Tensor) -> Callable[[], torch.Tensor]:
    """A function that accumulates a gradient with momentum and takes the largest values out.

    It returns their places.

    Source: Lin et al., "Deep gradient compression", ICLR 2018, algorithm 4 and section 3: the
    threshold is that of a sample, and the choice is then made among what exceeds it.
    """
    velocity, residual = torch.zeros_like(gradient), torch.zeros_like(gradient)
    count = max(1, round(_RATIO * len(gradient)))
    stride = max(1, min(_MOST_STRIDE, count // _LEAST_FOUND))

    def compress() -> torch.Tensor:
        velocity.mul_(_MOMENTUM).add_(gradient)
        residual.add_(velocity)
        magnitude = residual.abs()
        sample = magnitude[::stride]
        threshold = sample.topk(min(len(sample), int(1.5 * count / stride) + 2)).values[-1]
        found = (magnitude >= threshold).nonzero().flatten()
        places = found[magnitude[found].topk(min(count, len(found))).indices]
        residual[places] = 0
        velocity[places] = 0
        return places

    return compress
