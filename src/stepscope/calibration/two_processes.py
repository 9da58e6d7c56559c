"""Measurements between two processes on this machine that communicate over gloo.

Imports torch; only for the measuring process. That process must not have computed anything yet,
since the two processes are forked from it.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch


def between_two_processes(measure: Callable[[], Any]) -> Any:
    """Call `measure` in two forked processes that form a gloo group.

    Args:
        measure: runs the same collectives in both processes, on one thread.

    Returns:
        The result of the first process; None if it failed or processes cannot be forked.
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
    from torch import distributed

    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    facts = measure()
    if rank == 0:
        results.put(facts)
    distributed.barrier()
    distributed.destroy_process_group()
