"""An all-reduce of two processes of this machine: how long, and how much CPU time it takes.

Imports torch: for the process that measures, which must not have computed anything yet, since the
two are forked from it.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

_BYTES = (1 << 12, 1 << 18, 1 << 20, 1 << 23, 25 << 20)
_CALLS = 5


def reducing() -> list[list[float]]:
    """Rows of bytes, time and each process's CPU time, ns; none where nothing can be forked."""
    if "fork" not in multiprocessing.get_all_start_methods():
        return []
    context = multiprocessing.get_context("fork")
    rows = context.SimpleQueue()
    with TemporaryDirectory(prefix="stepscope-") as folder:
        meeting = Path(folder, "meeting").as_uri()
        both = [context.Process(target=_reduce, args=(n, meeting, rows)) for n in (0, 1)]
        for one in both:
            one.start()
        for one in both:
            one.join()
    return list(rows.get()) if not rows.empty() else []


def _reduce(rank: int, meeting: str, rows: Any) -> None:
    from torch import distributed

    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    found = [[float(size), *_all_reduce_ns(distributed, size)] for size in _BYTES]
    if rank == 0:
        rows.put(found)
    distributed.barrier()
    distributed.destroy_process_group()


def _all_reduce_ns(distributed: Any, size: int) -> list[float]:
    values = torch.ones(size // 4)
    distributed.all_reduce(values)
    times: list[tuple[int, int]] = []
    for _ in range(_CALLS):
        distributed.barrier()
        wall, cpu = time.perf_counter_ns(), time.process_time_ns()
        distributed.all_reduce(values)
        times.append((time.perf_counter_ns() - wall, time.process_time_ns() - cpu))
    return [float(statistics.median(column)) for column in zip(*times, strict=True)]
