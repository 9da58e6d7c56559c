"""Measurements between two processes on this machine that communicate over gloo.

They are the wall time and CPU time of an all-reduce, and the CPU time that sharding a model costs
the computing thread. Imports torch; only for the measuring process. That process must not have
computed anything yet, since the two processes are forked from it.
"""

import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, distributed, nn

from stepscope.models.calibration.measured_inputs import cold_arrays, parts_in_turn
from stepscope.models.calibration.timed import Timed, queued_ns, share_since
from stepscope.trace.recorded_steps import QUIET


def between_two_processes(measure: Callable[[], Any]) -> Any:
    """The result of `measure` in the first of two forked processes that form a gloo group; None if it
    failed or processes cannot be forked.

    Args:
        measure: runs the same collectives in both processes, on one thread.
    """
    if "fork" not in multiprocessing.get_all_start_methods():
        return None
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    with TemporaryDirectory(prefix="stepscope-") as folder:
        address = Path(folder, "address").as_uri()
        both = [context.Process(target=_join, args=(n, address, measure, results)) for n in (0, 1)]
        for process in both:
            process.start()
        for process in both:
            process.join()
    return None if results.empty() else results.get()


def _join(rank: int, address: str, measure: Callable[[], Any], results: Any) -> None:
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    facts = measure()
    if rank == 0:
        results.put(facts)
    distributed.barrier()
    distributed.destroy_process_group()


_BYTES = (1 << 12, 1 << 18, 1 << 20, 1 << 23, 25 << 20)  # of messages; the last is a full DDP bucket
_CALLS, _MOST_CALLS = 5, 25


def reducing() -> list[list[Any]]:
    """Rows of bytes, time and CPU time per process, ns; empty if processes cannot be forked."""

    def rows() -> list[list[Any]]:
        arrays = cold_arrays(1)
        return [[float(size), *_all_reduce(parts_in_turn(arrays, size // 4))] for size in _BYTES]

    return between_two_processes(rows) or []


def _all_reduce(parts: Iterator[tuple[Tensor, ...]]) -> tuple[Timed, float]:
    """The medians of those repetitions that other processes disturbed least."""
    distributed.all_reduce(next(parts)[0])
    calls: list[tuple[float, int, int]] = []
    while len(calls) < _CALLS or (
        sum(share >= QUIET for share, _, _ in calls) < _CALLS and len(calls) < _MOST_CALLS
    ):
        calls.append(_repetition(next(parts)[0]))
    best = sorted(calls, key=lambda call: -call[0])[:_CALLS]
    shares, walls, cpu = zip(*best, strict=True)
    return Timed(float(statistics.median(walls)), min(shares)), float(statistics.median(cpu))


def _repetition(values: Tensor) -> tuple[float, int, int]:
    """The share of a core that the slower process got, and the time and the CPU time of this one."""
    distributed.barrier()
    queued = queued_ns()
    wall, cpu = time.perf_counter_ns(), time.process_time_ns()
    distributed.all_reduce(values)
    wall, cpu = time.perf_counter_ns() - wall, time.process_time_ns() - cpu
    share = torch.tensor([share_since(queued, queued_ns(), wall)], dtype=torch.float64)
    # Both processes go on, or both stop.
    distributed.all_reduce(share, op=distributed.ReduceOp.MIN)
    return float(share), wall, cpu


# Square weights: (number, width); 16 KiB to 16 MiB in total.
_UNITS = ((1, 64), (12, 64), (1, 512), (1, 1024), (1, 2048))
_SHARDED_CALLS = 8  # of which the shortest counts
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

    def facts() -> dict[str, Any]:
        try:
            return {"units": [_unit_ns(*unit) for unit in _UNITS], "operator": _operator_ns()}
        except (ImportError, RuntimeError, TypeError):
            return {}  # both are the same torch, and fail alike

    return between_two_processes(facts) or {}


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
    extra = [_least_ns(partial(call, sharded)) - _least_ns(partial(call, plain)) for call in _OPERATORS]
    return max(fmean(extra), 0.0)


def _mesh() -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (2,))


def _least_ns(call: Callable[[], object]) -> float:
    call()
    times = []
    for _ in range(_SHARDED_CALLS):
        begin = time.thread_time_ns()
        call()
        times.append(time.thread_time_ns() - begin)
    return float(min(times))
