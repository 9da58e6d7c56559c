"""The process that measures a calibration: a request as JSON on stdin, times as JSON on stdout.

It runs micro-benchmarks: single operators, fused optimizer steps, batches. Imports torch.
"""

import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.utils.data import DataLoader, Dataset

from stepscope.models.calibration.measured_inputs import cold_arrays, parts_in_turn, prepare
from stepscope.models.calibration.timed import (
    Timed,
    each_time,
    least,
    least_share,
    plain,
    queued_ns,
    share_since,
)
from stepscope.trace.recorded_steps import QUIET

_MOST_PASSES = 3  # of measurements that other processes disturbed
_SIZES = [1 << n for n in range(8, 26, 2)]  # elements
_TENSORS = ((1, 1 << 10), (1, 1 << 17), (1, 1 << 20), (2, 1 << 23), (64, 1 << 10), (64, 1 << 18))
_OPTIMIZERS: dict[str, dict[str, Any]] = {
    "Adam": {},
    "AdamW": {},
    "SGD": {},
    "SGD with momentum": {"momentum": 0.9},
    "Adagrad": {},
}
# Between two updates. Of four models (17 to 73 tensors, 0.3 to 1.3 million weights), fused updates took 1.4
# to 2.2 times what they took again and again, and within 10 % of this.
_STEP_FLOATS = 1 << 23  # touched, 32 MiB; chosen on these models
_BATCH_BYTES = (1 << 12, 1 << 18, 1 << 21, 1 << 23)  # of batches: 4 KiB to 8 MiB
_BATCHES, _SAMPLES = (10, 60), 16


Measurement = Callable[[], Any]


def operator_times(signature: str) -> list[Timed | None]:
    """The time of an operator in 32 bits and in 16; None where the call is not possible."""
    single, half = prepare(signature, half=False), prepare(signature, half=True)
    if single is None:
        return [None, None]
    if half is None:
        return [least([single])[0], None]
    return list(least([single, half]))


def casts() -> list[list[Any]]:
    """Rows of elements, to 16 bits, to 32 bits."""
    rows = []
    for elements in _SIZES:
        wide = torch.rand(elements)
        narrow = wide.bfloat16()
        calls = [lambda: wide.bfloat16(), lambda: narrow.float()]  # noqa: B023
        rows.append([float(elements), *least(calls)])
    return rows


def copies() -> list[list[Any]]:
    """Rows of bytes, and the time to copy them where no cache has them."""
    arrays, rows = cold_arrays(2), []
    for elements in _SIZES:
        parts = parts_in_turn(arrays, elements)

        def copy() -> None:
            source, target = next(parts)  # noqa: B023
            target.copy_(source)

        rows.append([4.0 * elements, *least([copy])])
    return rows


def fused_steps() -> dict[str, list[list[Any]]]:
    """By class: rows of tensors, total elements, time of a fused step."""
    table: dict[str, list[list[Any]]] = {}
    for name, settings in _OPTIMIZERS.items():
        cls = getattr(torch.optim, name.partition(" ")[0])
        with suppress(RuntimeError, TypeError, ValueError):  # this version of torch does not fuse it on a CPU
            table[name] = [_fused_step(cls, settings, *shape) for shape in _TENSORS]
    return table


def _fused_step(cls: Any, settings: dict[str, Any], tensors: int, elements: int) -> list[Any]:
    parameters = [torch.rand(elements, requires_grad=True) for _ in range(tensors)]
    for parameter in parameters:
        parameter.grad = torch.rand(elements)
    optimizer = cls(parameters, lr=1e-3, fused=True, **settings)
    optimizer.step()
    # Between two updates a step fills the caches with its own work: Python and tensors are then far away.
    step = torch.zeros(_STEP_FLOATS)
    time = least([optimizer.step], before=lambda: step.add_(1))
    return [float(tensors), float(tensors * elements), *time]


class _Batches(Dataset[torch.Tensor]):
    def __init__(self, size: int, batches: int) -> None:
        self._sample = torch.rand(size // 4 // _SAMPLES)
        self._batches = batches

    def __len__(self) -> int:
        return self._batches * _SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._sample


def _handover_ns(size: int) -> list[float]:
    """The cost per extra batch of a longer run, so that starting workers does not count."""
    few, many = (_load(size, batches) for batches in _BATCHES)
    more = _BATCHES[1] - _BATCHES[0]
    return [max(after - before, 1.0) / more for before, after in zip(few, many, strict=True)]


def _load(size: int, batches: int) -> tuple[float, float]:
    """CPU time of this process and its workers for a number of batches, ns."""
    loop, workers = time.process_time_ns(), _workers_ns()
    # Of a server that starts workers, Python 3.14's default on Linux, their time is not known here.
    start = "fork" if "fork" in multiprocessing.get_all_start_methods() else None
    data = _Batches(size, batches)
    for batch in DataLoader(data, batch_size=_SAMPLES, num_workers=1, multiprocessing_context=start):
        batch.sum()
    return time.process_time_ns() - loop, _workers_ns() - workers


def _workers_ns() -> float:
    times = os.times()
    return (times.children_user + times.children_system) * 1e9


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """The requested measurements, and the smallest share of a core that one of them got."""
    once: dict[str, Any] = {}
    if request["machine"]:
        once = {"reducing": reducing(), "sharding": sharding()}
    torch.set_num_threads(request["threads"])
    if request["machine"]:
        once["loading"] = [[float(size), *_handover_ns(size)] for size in _BATCH_BYTES]
    wanted: dict[str, Measurement] = {text: partial(operator_times, text) for text in request["operators"]}
    if request["machine"]:
        wanted |= {"casts": casts, "copies": copies, "optimizers": fused_steps}
        wanted["sparse_gradients"] = sparse_gradients
    found = undisturbed(wanted)
    share = min(least_share(once), least_share(found))
    operators = {text: found.pop(text) for text in request["operators"]}
    facts = plain({**once, **found, "operators": operators})
    return {"torch": str(torch.__version__), "core_share": share, **facts}


def undisturbed(wanted: Mapping[str, Measurement]) -> dict[str, Any]:
    """Each measurement; those that other processes disturbed are repeated after the others.

    Of repetitions the shorter times count.
    """
    measured: dict[str, Any] = {}
    for _ in range(_MOST_PASSES):
        for name, measurement in wanted.items():
            again = measurement()
            measured[name] = each_time(min, measured[name], again) if name in measured else again
        wanted = {name: again for name, again in wanted.items() if least_share(measured[name]) < QUIET}
    return measured


_GRADIENT_SIZES = [1 << n for n in (12, 16, 18, 20, 22)] + [25 << 18]  # elements; the last are 25 MiB
_RATIO, _MOMENTUM = 0.01, 0.9
_LARGEST_STRIDE, _LEAST_FOUND = 100, 10  # of the sample; in the sample, above the threshold


def sparse_gradients() -> list[list[Any]]:
    """Rows of elements, and the times to compress, to add one worker's share, and to empty."""
    arrays = cold_arrays(3)
    for kept in arrays[1:]:
        kept.zero_()
    return [[float(elements), *_gradient_times(arrays, elements)] for elements in _GRADIENT_SIZES]


def _gradient_times(arrays: Sequence[Tensor], elements: int) -> list[Timed]:
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
    """The places of about the `count` values of largest magnitude, always so many."""
    magnitude = values.abs()
    found = (magnitude >= _threshold(magnitude, count)).nonzero().flatten()
    if len(found) < count:
        return magnitude.topk(count).indices
    return found[magnitude[found].topk(count).indices]


def _threshold(magnitude: Tensor, count: int) -> Tensor:
    """A bound that somewhat more than `count` values exceed, by a sample."""
    stride = max(1, min(_LARGEST_STRIDE, count // _LEAST_FOUND))
    sample = magnitude[::stride]
    return sample.topk(min(len(sample), int(1.5 * count / stride) + 2)).values[-1]


# -- measurements between two processes on this machine that communicate over gloo
# They are the wall time and CPU time of an all-reduce, and the CPU time that sharding a model costs
# the computing thread. Imports torch; only for the measuring process. That process must not have
# computed anything yet, since the two processes are forked from it.


def between_two_processes(measure: Callable[[], Any]) -> Any:
    """The result of `measure` in the first of two forked processes that form a gloo group; None if
    it failed or processes cannot be forked. It runs the same collectives in both, on one thread."""
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
        with suppress(ImportError, RuntimeError, TypeError):  # both are the same torch, and fail alike
            return {"units": [_unit_ns(*unit) for unit in _UNITS], "operator": _operator_ns()}
        return {}

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


if __name__ == "__main__":
    print(json.dumps(measure(json.load(sys.stdin))))
