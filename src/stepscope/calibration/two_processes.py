"""What is measured between two processes of this machine that meet over gloo.

Imports torch: for the process that measures, which must not have computed anything yet, since the
two are forked from it.
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
    """Call `measure` in two processes, forked from this one, that are one gloo group.

    Args:
        measure: the same collectives in both; called on one thread.

    Returns:
        What it gave in the first; None where nothing can be forked, or it failed there.
    """
    if "fork" not in multiprocessing.get_all_start_methods():
        return None
    context = multiprocessing.get_context("fork")
    found = context.SimpleQueue()
    with TemporaryDirectory(prefix="stepscope-") as folder:
        meeting = Path(folder, "meeting").as_uri()
        both = [context.Process(target=_join, args=(n, meeting, measure, found)) for n in (0, 1)]
        for one in both:
            one.start()
        for one in both:
            one.join()
    return None if found.empty() else found.get()


def _join(rank: int, meeting: str, measure: Callable[[], Any], found: Any) -> None:
    from torch import distributed

    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    facts = measure()
    if rank == 0:
        found.put(facts)
    distributed.barrier()
    distributed.destroy_process_group()
