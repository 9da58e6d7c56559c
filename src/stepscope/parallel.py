"""The same work on each of several files, in as many processes as pay."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, ThreadPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import ModuleType
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

    Raises:
        IngestError: if a process ends before its work is done.
    """
    try:
        with _pool(files, executor) as pool:
            with nullcontext() if executor else _without_main():
                futures = {pool.submit(partial(_attempt, work), file): file for file in files}
            for future in as_completed(futures):
                finished(futures[future])
            return {file: future.result() for future, file in futures.items()}
    except BrokenExecutor as error:
        raise IngestError(
            f"expected to read {len(files)} files at once, found that a process ended before its "
            "file was read, as when memory runs out; read them one by one, which keeps the results"
        ) from error


def _attempt(work: Callable[[Path], Result], file: Path) -> Result | IngestError:
    try:
        return work(file)
    except IngestError as error:
        return error


@contextmanager
def _without_main() -> Iterator[None]:
    """Processes that are started meanwhile do not run the program's own script once more.

    They would, in case their work was pickled from there, which ours is not; and a script that
    opens a folder without asking for its `__name__` would open it again in each of them.
    """
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


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
