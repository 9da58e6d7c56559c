"""Wall time and CPU time of an all-reduce between two processes on this machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed

from stepscope.calibration.cold_memory import cold_arrays, parts_in_turn
from stepscope.calibration.timed import QUIET, Timed, queued_ns, share_since
from stepscope.calibration.two_processes import between_two_processes

_BYTES = (1 << 12, 1 << 18, 1 << 20, 1 << 23, 25 << 20)
_CALLS, _MOST_CALLS = 5, 25


def reducing() -> list[list[Any]]:
    """Rows of bytes, time and CPU time per process, ns; empty if processes cannot be forked."""
    return between_two_processes(_rows) or []


def _rows() -> list[list[Any]]:
    arrays = cold_arrays(1)
    return [[float(size), *_all_reduce(parts_in_turn(arrays, size // 4))] for size in _BYTES]


def _all_reduce(parts: Iterator[tuple[Tensor, ...]]) -> tuple[Timed, float]:
    """The medians of those repetitions that other processes disturbed least."""
    distributed.all_reduce(next(parts)[0])
    found: list[_Repetition] = []
    while len(found) < _CALLS or (
        sum(one.share >= QUIET for one in found) < _CALLS and len(found) < _MOST_CALLS
    ):
        found.append(_repetition(next(parts)[0]))
    best = sorted(found, key=lambda one: -one.share)[:_CALLS]
    share = min(one.share for one in best)
    return (
        Timed(float(statistics.median(one.ns for one in best)), share),
        float(statistics.median(one.cpu_ns for one in best)),
    )


class _Repetition(NamedTuple):
    ns: int
    cpu_ns: int
    share: float


def _repetition(values: Tensor) -> _Repetition:
    distributed.barrier()
    queued = queued_ns()
    wall, cpu = time.perf_counter_ns(), time.process_time_ns()
    distributed.all_reduce(values)
    wall, cpu = time.perf_counter_ns() - wall, time.process_time_ns() - cpu
    share = torch.tensor([share_since(queued, queued_ns(), wall)], dtype=torch.float64)
    # Both processes go on, or both stop.
    distributed.all_reduce(share, op=distributed.ReduceOp.MIN)
    return _Repetition(wall, cpu, float(share))
