"""CPU time that sharding a model over two processes costs the computing thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import nn

from stepscope.calibration.two_processes import between_two_processes

# Square weights: (number, width); 16 KiB to 16 MiB in total.
_UNITS = ((1, 64), (12, 64), (1, 512), (1, 1024), (1, 2048))
_CALLS = 8
# The operators of Adam.
_OPERATORS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda tensor: tensor.mul_(0.9),
    lambda tensor: tensor.lerp_(tensor, 0.1),
    lambda tensor: tensor.addcmul_(tensor, tensor),
    lambda tensor: tensor.sqrt(),
    lambda tensor: tensor.div(2.0),
    lambda tensor: tensor.add_(1e-8),
    lambda tensor: tensor.addcdiv_(tensor, tensor),
)


def sharding() -> dict[str, Any]:
    """CPU time of copies and Python, without waits for the other process.

    Returns:
        `units`: rows of tensors, total bytes, and the time to gather such a unit twice and scatter
        its gradients. `operator`: the extra time of an operator on sharded tensors, the mean over
        Adam's operators. Times in ns. Empty if processes cannot be forked, or if this torch does
        not shard models on a CPU.
    """
    return between_two_processes(_facts) or {}


def _facts() -> dict[str, Any]:
    try:
        return {"units": [_unit_ns(*unit) for unit in _UNITS], "operator": _operator_ns()}
    except (ImportError, RuntimeError, TypeError):
        return {}  # both are the same torch, and fail alike


def _unit_ns(tensors: int, width: int) -> list[float]:
    """Tensors, bytes, and the extra time of a sharded forward and backward."""
    plain, sharded = (_step_ns(tensors, width, shard) for shard in (False, True))
    return [float(tensors), 4.0 * tensors * width**2, max(sharded - plain, 1.0)]


def _step_ns(tensors: int, width: int, shard: bool) -> float:
    unit = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(tensors)))
    model = nn.Sequential(unit)
    if shard:
        from torch.distributed.fsdp import fully_shard

        fully_shard(unit, mesh=_mesh())
        fully_shard(model, mesh=_mesh())
    x = torch.ones(1, width)

    def step() -> None:
        model(x).sum().backward()
        model.zero_grad()

    return _least_ns(step)


def _operator_ns() -> float:
    from torch.distributed.tensor import Shard, distribute_tensor

    plain = torch.ones(64)
    sharded = distribute_tensor(plain, _mesh(), [Shard(0)])
    extra = [_least_ns(partial(call, sharded)) - _least_ns(partial(call, plain))
             for call in _OPERATORS]  # fmt: skip
    return max(fmean(extra), 0.0)


def _mesh() -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (2,))


def _least_ns(call: Callable[[], object]) -> float:
    call()
    times = []
    for _ in range(_CALLS):
        begin = time.thread_time_ns()
        call()
        times.append(time.thread_time_ns() - begin)
    return float(min(times))
