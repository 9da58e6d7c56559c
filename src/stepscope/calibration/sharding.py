"""What sharding a model over two processes of this machine costs the thread that computes."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import nn

from stepscope.calibration.two_processes import between_two_processes

# Square weights: how many of which width; 16 KiB to 16 MiB in all.
_UNITS = ((1, 64), (12, 64), (1, 512), (1, 1024), (1, 2048))
_CALLS = 8
# What Adam calls.
_OPERATORS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda one: one.mul_(0.9),
    lambda one: one.lerp_(one, 0.1),
    lambda one: one.addcmul_(one, one),
    lambda one: one.sqrt(),
    lambda one: one.div(2.0),
    lambda one: one.add_(1e-8),
    lambda one: one.addcdiv_(one, one),
)


def sharding() -> dict[str, Any]:
    """CPU time of copies and Python, without the time in which the thread waits for the other.

    Returns:
        `units`: rows of tensors, bytes in all, and what gathering such a unit twice and scattering
        its gradients takes; `operator`: what an operator takes longer on sharded tensors, the mean
        of Adam's. Times in ns; empty where nothing can be forked, or this torch shards no model on
        a CPU.
    """
    return between_two_processes(_facts) or {}


def _facts() -> dict[str, Any]:
    try:
        return {"units": [_unit_ns(*unit) for unit in _UNITS], "operator": _operator_ns()}
    except (ImportError, RuntimeError, TypeError):
        return {}  # both are the same torch, and fail alike


def _unit_ns(tensors: int, width: int) -> list[float]:
    """Tensors, bytes, and what forward and backward take longer where they are sharded."""
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
    more = [_least_ns(partial(call, sharded)) - _least_ns(partial(call, plain))
            for call in _OPERATORS]  # fmt: skip
    return max(fmean(more), 0.0)


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
