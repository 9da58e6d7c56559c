"""The process that measures a calibration: a request as JSON on stdin, times as JSON on stdout.

Micro-benchmarks only: each is one operator, one fused step, one batch. Imports torch.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from stepscope.calibration.reducing import reducing
from stepscope.calibration.replay import prepare
from stepscope.calibration.sharding import sharding

_LEAST_S, _LEAST_CALLS, _MOST_CALLS = 0.03, 3, 50
_SIZES = [1 << n for n in range(8, 26, 2)]  # elements
_TENSORS = ((1, 1 << 10), (1, 1 << 17), (1, 1 << 20), (2, 1 << 23), (64, 1 << 10), (64, 1 << 18))
_OPTIMIZERS: dict[str, dict[str, Any]] = {
    "Adam": {}, "AdamW": {}, "SGD": {}, "SGD with momentum": {"momentum": 0.9}, "Adagrad": {},
}  # fmt: skip
_BATCH_BYTES = (1 << 12, 1 << 18, 1 << 21, 1 << 23)
_BATCHES, _SAMPLES = (10, 60), 16


def least_ns(calls: Sequence[Callable[[], object]]) -> list[float]:
    """The least time of each call, ns: what disturbs a call only makes it longer.

    They take turns, so that a busy machine slows all alike.
    """
    times: list[list[float]] = [[] for _ in calls]
    begin = time.perf_counter()
    while len(times[0]) < _LEAST_CALLS or (
        time.perf_counter() - begin < _LEAST_S * len(calls) and len(times[0]) < _MOST_CALLS
    ):
        for one, mine in zip(calls, times, strict=True):
            start = time.perf_counter_ns()
            result = one()
            mine.append(time.perf_counter_ns() - start)
            del result
    return [float(min(mine)) for mine in times]


def operator_ns(signature: str) -> list[float | None]:
    """What an operator takes in 32 bits and in 16; None where it cannot be called so."""
    single, half = prepare(signature, half=False), prepare(signature, half=True)
    if single is None:
        return [None, None]
    if half is None:
        return [least_ns([single])[0], None]
    return list(least_ns([single, half]))


def casts() -> list[list[float]]:
    """Rows of elements, to 16 bits, to 32 bits."""
    rows = []
    for elements in _SIZES:
        wide = torch.rand(elements)
        narrow = wide.bfloat16()
        calls = [lambda: wide.bfloat16(), lambda: narrow.float()]  # noqa: B023
        rows.append([float(elements), *least_ns(calls)])
    return rows


def copies() -> list[list[float]]:
    """Rows of bytes, and a copy of so many."""
    return [[4.0 * elements, *least_ns([torch.rand(elements).clone])] for elements in _SIZES]


def fused_steps() -> dict[str, list[list[float]]]:
    """By class: rows of tensors, elements in all, a fused step."""
    table: dict[str, list[list[float]]] = {}
    for name, settings in _OPTIMIZERS.items():
        cls = getattr(torch.optim, name.partition(" ")[0])
        try:
            table[name] = [_fused_step(cls, settings, *shape) for shape in _TENSORS]
        except (RuntimeError, TypeError, ValueError):
            continue  # this version of torch does not fuse it on a CPU
    return table


def _fused_step(cls: Any, settings: dict[str, Any], tensors: int, elements: int) -> list[float]:
    parameters = [torch.rand(elements, requires_grad=True) for _ in range(tensors)]
    for one in parameters:
        one.grad = torch.rand(elements)
    optimizer = cls(parameters, lr=1e-3, fused=True, **settings)
    optimizer.step()
    return [float(tensors), float(tensors * elements), *least_ns([optimizer.step])]


class _Batches(Dataset[torch.Tensor]):
    """Batches that cost nothing to make but for being put together."""

    def __init__(self, size: int, batches: int) -> None:
        self._sample = torch.rand(size // 4 // _SAMPLES)
        self._batches = batches

    def __len__(self) -> int:
        return self._batches * _SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._sample


def loading() -> list[list[float]]:
    """Rows of bytes, and the CPU time that handing over a batch costs the loop and its worker."""
    return [[float(size), *_handover_ns(size)] for size in _BATCH_BYTES]


def _handover_ns(size: int) -> list[float]:
    """What longer runs cost more than shorter ones, so that starting workers does not count."""
    few, many = (_load(size, batches) for batches in _BATCHES)
    more = _BATCHES[1] - _BATCHES[0]
    return [max(after - before, 1.0) / more for before, after in zip(few, many, strict=True)]


def _load(size: int, batches: int) -> tuple[float, float]:
    """CPU time of this process and of its workers for so many batches, ns."""
    loop, workers = time.process_time_ns(), _workers_ns()
    for batch in DataLoader(_Batches(size, batches), batch_size=_SAMPLES, num_workers=1):
        batch.sum()
    return time.process_time_ns() - loop, _workers_ns() - workers


def _workers_ns() -> float:
    """CPU time of all child processes that have ended."""
    times = os.times()
    return (times.children_user + times.children_system) * 1e9


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """The facts that a request asks for."""
    facts: dict[str, Any] = {"torch": str(torch.__version__)}
    if request["machine"]:
        facts.update(reducing=reducing(), sharding=sharding())
    torch.set_num_threads(request["threads"])
    if request["machine"]:
        facts.update(casts=casts(), copies=copies(), optimizers=fused_steps(), loading=loading())
    with torch.no_grad():
        facts["operators"] = {text: operator_ns(text) for text in request["operators"]}
    return facts


if __name__ == "__main__":
    print(json.dumps(measure(json.load(sys.stdin))))
