"""Deep gradient compression (Lin et al., ICLR 2018) in a communication hook.

Each worker accumulates its gradients with momentum, and sends the largest values of what it has
accumulated; the rest stays until it is large enough. The optimizer has no momentum of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, distributed
from torch.futures import Future

from stepscope.models.calibration.measure import take_largest


class Dgc:
    """Averages sparse gradients as a communication hook of `DistributedDataParallel`.

    Args:
        ratio: the share of the gradients that is sent.
        momentum: of the velocity that is accumulated.
    """

    def __init__(self, ratio: float = 0.001, momentum: float = 0.9) -> None:
        self.ratio, self.momentum = ratio, momentum
        self._of_parameter: dict[Tensor, tuple[Tensor, Tensor]] = {}
        self._of_bucket: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}

    def average(self, bucket: distributed.GradBucket) -> Future[Tensor]:
        """A future of the average of what all workers sent of a bucket."""
        buffer, parameters = bucket.buffer(), bucket.parameters()
        sent = compress(buffer, *self.accumulated(parameters), self.ratio, self.momentum)
        world = distributed.get_world_size()
        received = sent.new_empty(world * len(sent))
        work = distributed.all_gather_single(received, sent, async_op=True)
        return work.get_future().then(lambda done: decompress(received, buffer, world))

    def accumulated(self, parameters: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Velocity and residual of the parameters of a bucket, flat, in their order.

        Buckets are formed again after the first step, so both are also kept by parameter.
        """
        key = tuple(map(id, parameters))
        if key not in self._of_bucket:
            kept = [self._of_parameter.get(one, _zeros(one)) for one in parameters]
            both = torch.cat([u for u, _ in kept]), torch.cat([v for _, v in kept])
            sizes = [one.numel() for one in parameters]
            views = zip(parameters, both[0].split(sizes), both[1].split(sizes), strict=True)
            self._of_parameter.update({one: (u, v) for one, u, v in views})
            self._of_bucket[key] = both
        return self._of_bucket[key]


def compress(gradient: Tensor, velocity: Tensor, residual: Tensor, ratio: float, momentum: float) -> Tensor:
    """Accumulate a gradient, and take out the largest values: see `take_largest`.

    Returns:
        The values, then their places as bits of float32, shape (2 * sent,).
    """
    values, places = take_largest(gradient, velocity, residual, ratio, momentum)
    return torch.cat([values, places.to(torch.int32).view(torch.float32)])


def decompress(received: Tensor, buffer: Tensor, world: int) -> Tensor:
    """Add up what each worker sent, over the number of workers.

    Args:
        received: what `compress` returned in each worker, one after the other.
        buffer: where to, flat; overwritten.
        world: number of workers.
    """
    buffer.zero_()
    for part in received.chunk(world):
        values, places = part.chunk(2)
        buffer.index_add_(0, places.view(torch.int32), values, alpha=1 / world)
    return buffer


def _zeros(parameter: Tensor) -> tuple[Tensor, Tensor]:
    return torch.zeros(parameter.numel()), torch.zeros(parameter.numel())
