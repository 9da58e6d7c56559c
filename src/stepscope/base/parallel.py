"""Runs a function on each of several files in processes, or of several items in threads."""

import os
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, ThreadPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from itertools import chain
from types import ModuleType
from typing import TypeVar

from stepscope.errors import IngestError

Result = TypeVar("Result")
File = TypeVar("File", bound=Hashable)
Item = TypeVar("Item")
_BYTES = 16 << 20  # of files for each process: with less, starting it and sending traces back costs more
_FILE_BYTES = 1 << 16  # that take as long to read as the tables of any file take to make, 8 ms
_BATCHES = 16  # of items per thread: handing over one item costs 0.1 ms, and batches differ in work
_MIN_ROWS = 1 << 16  # with fewer, starting threads costs more


def usable_cores() -> int:
    """The number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_threads(
    work: Callable[[Item], Result], items: Sequence[Item], rows: int, most_rows: int = sys.maxsize
) -> list[Result]:
    """The result of `work` on each item, in order, on all cores if there are many rows.

    `work` is arithmetic on arrays of so many rows, which runs without the interpreter's lock and
    changes nothing that another item's work reads. With more than `most_rows`, items are done one
    after the other, as each needs much memory.

    Example:
        >>> in_threads(abs, [-1, 2], rows=1 << 20)
        [1, 2]
    """
    threads = min(usable_cores(), len(items))
    if threads < 2 or not _MIN_ROWS <= rows <= most_rows:
        return list(map(work, items))
    size = -(-len(items) // (_BATCHES * threads))
    batches = [items[start : start + size] for start in range(0, len(items), size)]
    with ThreadPoolExecutor(threads, "stepscope-rows") as pool:
        return list(chain.from_iterable(pool.map(lambda batch: list(map(work, batch)), batches)))


def in_background(work: Callable[[], Result], rows: int) -> Callable[[], Result]:
    """Start work on arrays as long as `rows` in a thread, if they are long and there is a second core.

    Returns a function that returns the result of `work` once it is done, and raises what it raises.

    Example:
        >>> in_background(lambda: 2, rows=1 << 20)()
        2
    """
    if usable_cores() < 2 or rows < _MIN_ROWS:
        return cache(work)
    pool = ThreadPoolExecutor(1, "stepscope-background")
    future = pool.submit(work)
    pool.shutdown(wait=False)
    return future.result


def on_each(
    sizes: Mapping[File, int],
    work: Callable[[File], Result],
    executor: Executor | None,
    finished: Callable[[File, Result | IngestError], None],
) -> dict[File, Result | IngestError]:
    """The result of `work` on each file, or the IngestError that it raised, in the given order.

    Args:
        sizes: bytes of each file.
        work: a function of the file alone that can be pickled.
        executor: runs the work; by default processes on this machine, or a thread for little work.
        finished: called with each file and what became of it, as soon as it is done.

    Raises IngestError if a process ends before its work is done.
    """
    try:
        with _pool(sizes, executor) as pool:
            with nullcontext() if executor else _without_main():
                futures = {pool.submit(partial(attempt, work), file): file for file in sizes}
            for future in as_completed(futures):
                finished(futures[future], future.result())
            return {file: future.result() for future, file in futures.items()}
    except BrokenExecutor as error:
        raise IngestError(
            f"a process ended while reading {len(sizes)} files in parallel, possibly out of "
            "memory; open the files one by one first, then the folder reads them from the cache"
        ) from error


def attempt(work: Callable[[File], Result], file: File) -> Result | IngestError:
    """The result of `work`, or the IngestError that it raised."""
    try:
        return work(file)
    except IngestError as error:
        return error


@contextmanager
def _without_main() -> Iterator[None]:
    """Keep new processes from importing the program's main script.

    They would import it to unpickle objects defined there, of which there are none here. A script
    that opens a folder without a `__name__` guard would open it again in each process.
    """
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def _pool(sizes: Mapping[File, int], given: Executor | None) -> Iterator[Executor]:
    if given is not None:
        yield given
        return
    with _processes(sizes) or ThreadPoolExecutor(1) as pool:
        yield pool


def _processes(sizes: Mapping[File, int]) -> Executor | None:
    """A pool of processes if there are cores for them and enough to read, else None."""
    work = sum(sizes.values()) + _FILE_BYTES * len(sizes)
    count = min(len(sizes), usable_cores(), work // _BYTES)
    if count < 2:
        return None
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    # Not fork: it would copy locks that threads of this process hold.
    return ProcessPoolExecutor(count, get_context("spawn"))
