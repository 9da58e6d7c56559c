"""The process that measures a calibration: a request as JSON on stdin, times as JSON on stdout.

It runs micro-benchmarks: single operators, fused optimizer steps, batches. Imports torch.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from stepscope.models.calibration.measured_inputs import cold_arrays, parts_in_turn, prepare
from stepscope.models.calibration.timed import Timed, each_time, least, least_share, plain
from stepscope.models.calibration.two_processes import reducing, sharding
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
        try:
            table[name] = [_fused_step(cls, settings, *shape) for shape in _TENSORS]
        except (RuntimeError, TypeError, ValueError):
            continue  # this version of torch does not fuse it on a CPU
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


def loading() -> list[list[float]]:
    """Rows of bytes, and the CPU time of the loop and its worker to hand over a batch."""
    return [[float(size), *_handover_ns(size)] for size in _BATCH_BYTES]


def _handover_ns(size: int) -> list[float]:
    """The cost per extra batch of a longer run, so that starting workers does not count."""
    few, many = (_load(size, batches) for batches in _BATCHES)
    more = _BATCHES[1] - _BATCHES[0]
    return [max(after - before, 1.0) / more for before, after in zip(few, many, strict=True)]


def _load(size: int, batches: int) -> tuple[float, float]:
    """CPU time of this process and its workers for a number of batches, ns."""
    loop, workers = time.process_time_ns(), _workers_ns()
    for batch in DataLoader(_Batches(size, batches), batch_size=_SAMPLES, num_workers=1):
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
        once["loading"] = loading()
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
    wanted = min(len(sample), int(1.5 * count / stride) + 2)
    return sample.topk(wanted).values[-1]


if __name__ == "__main__":
    print(json.dumps(measure(json.load(sys.stdin))))
