"""The same work on each of several files, in as many processes as pay."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from stepscope.errors import IngestError

Result = TypeVar("Result")
_PROCESSES_PAY_BYTES = 32 << 20  # below, starting them and sending traces back costs more


def on_each(
    files: Sequence[Path],
    work: Callable[[Path], Result],
    executor: Executor | None,
    finished: Callable[[Path], None],
) -> dict[Path, Result | IngestError]:
    """Do `work` on each file.

    Args:
        files: the files.
        work: a pure function of a file that can be sent to another process.
        executor: where to; by default processes on this machine, or none where they do not pay.
        finished: called with each file when it is done.

    Returns:
        For each file, in the order given, what `work` returned, or the IngestError that it raised.
    """
    with _pool(files, executor) as pool:
        futures = {pool.submit(partial(_attempt, work), file): file for file in files}
        for future in as_completed(futures):
            finished(futures[future])
        return {file: future.result() for future, file in futures.items()}


def _attempt(work: Callable[[Path], Result], file: Path) -> Result | IngestError:
    try:
        return work(file)
    except IngestError as error:
        return error


@contextmanager
def _pool(files: Sequence[Path], given: Executor | None) -> Iterator[Executor]:
    if given is not None:
        yield given
        return
    with _processes(files) or ThreadPoolExecutor(1) as pool:
        yield pool


def _processes(files: Sequence[Path]) -> Executor | None:
    """A pool of processes, where there are cores for them and enough to read."""
    count = min(len(files), os.cpu_count() or 1)
    if count < 2 or sum(file.stat().st_size for file in files) < _PROCESSES_PAY_BYTES:
        return None
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    # A fork would copy this process's threads' locks, held or not.
    return ProcessPoolExecutor(count, get_context("spawn"))
