"""An all-reduce of two processes of this machine: how long, and how much CPU time it takes."""

from __future__ import annotations

import statistics
import time

import torch
from torch import distributed

from stepscope.calibration.two_processes import between_two_processes

_BYTES = (1 << 12, 1 << 18, 1 << 20, 1 << 23, 25 << 20)
_CALLS = 5


def reducing() -> list[list[float]]:
    """Rows of bytes, time and each process's CPU time, ns; none where nothing can be forked."""
    return between_two_processes(_rows) or []


def _rows() -> list[list[float]]:
    return [[float(size), *_all_reduce_ns(size)] for size in _BYTES]


def _all_reduce_ns(size: int) -> list[float]:
    values = torch.ones(size // 4)
    distributed.all_reduce(values)
    times: list[tuple[int, int]] = []
    for _ in range(_CALLS):
        distributed.barrier()
        wall, cpu = time.perf_counter_ns(), time.process_time_ns()
        distributed.all_reduce(values)
        times.append((time.perf_counter_ns() - wall, time.process_time_ns() - cpu))
    return [float(statistics.median(column)) for column in zip(*times, strict=True)]
