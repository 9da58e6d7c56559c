"""Runs a function on each of several files in processes, or of several items in threads."""

import os
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor, as_completed
from contextlib import nullcontext, suppress
from functools import cache, partial
from itertools import chain
from threading import Lock
from types import ModuleType
from typing import Any, TypeVar

from stepscope.errors import IngestError

Result = TypeVar("Result")
File = TypeVar("File", bound=Hashable)
Item = TypeVar("Item")
_BYTES = 16 << 20  # of files for each process: with less, starting it and sending traces back costs more
_FILE_BYTES = 1 << 16  # that take as long to read as the tables of any file take to make, 8 ms
_BATCHES = 16  # of items per thread: handing over one item costs 0.1 ms, and batches differ in work
_MIN_ROWS = 1 << 16  # with fewer, starting threads costs more
_SAFE, _starting = "PYTHONSAFEPATH", Lock()


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
    """The result of `work` on each file, or why it cannot be read, in the order of `sizes` (bytes of each).

    `work` can be pickled, as its process may end. The executor is by default processes on this machine,
    if there is enough work; `finished` gets each file and what became of it, as soon as it is done.
    Raises IngestError if no process can be started.
    """
    results: dict[File, Result | IngestError] = {}
    count = _processes(sizes)
    while left := [file for file in sizes if file not in results]:
        for file, result in _done_by(executor, count, work, left):
            results[file] = result
            finished(file, result)
        # Where a process ended, its file is among the first that are not done: they begin in order.
        for file in [file for file in left if file not in results][: max(1, count)]:
            results[file] = _alone(work, file)
            finished(file, results[file])
    return {file: results[file] for file in sizes}


def _done_by(
    given: Executor | None, count: int, work: Callable[[File], Result], files: Iterable[File]
) -> Iterator[tuple[File, Result | IngestError]]:
    """What became of each file, as soon as it is done; not of all where a process ends."""
    if not given and not count:
        yield from ((file, attempt(work, file)) for file in files)
        return
    futures = {}
    with nullcontext(given) if given else spawned(count) as pool:
        with suppress(BrokenExecutor):
            for file in files:
                futures[pool.submit(partial(attempt, work), file)] = file
        for future in as_completed(futures):
            with suppress(BrokenExecutor):
                yield futures[future], future.result()


def _alone(work: Callable[[File], Result], file: File) -> Result | IngestError:
    """What becomes of a file in a process of its own."""
    if done := dict(_done_by(None, 1, work, [file])):
        return done[file]
    if not dict(_done_by(None, 1, repr, [file])):
        raise IngestError("no process can be started to read the files, possibly for lack of memory")
    return IngestError(f"{file}: the process that read it crashed or was killed, possibly for lack of memory")


def attempt(work: Callable[[File], Result], file: File) -> Result | IngestError:
    """The result of `work`, or the IngestError that it raised."""
    try:
        return work(file)
    except IngestError as error:
        return error


def _processes(sizes: Mapping[File, int]) -> int:
    """The number of processes, if there are cores for them and enough to read, else 0."""
    work = sum(sizes.values()) + _FILE_BYTES * len(sizes)
    count = min(len(sizes), usable_cores(), work // _BYTES)
    return count if count > 1 else 0


def spawned(count: int) -> Executor:
    """Processes that import neither the main script nor, from Python 3.11 on, modules of the user's folder.

    They would import the script to unpickle objects defined there, of which there are none here. One
    that opens a folder without a `__name__` guard would open it again in each process.
    """
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    class Spawned(ProcessPoolExecutor):
        def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
            with _starting:
                main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
                safe = os.environ.get(_SAFE)
                os.environ[_SAFE] = "1"
                try:
                    return super().submit(*args, **kwargs)
                finally:
                    sys.modules["__main__"] = main
                    del os.environ[_SAFE]
                    if safe is not None:
                        os.environ[_SAFE] = safe

    # Not fork: it would copy locks that threads of this process hold.
    return Spawned(count, get_context("spawn"))


def own_command(module: str, *words: str) -> list[str]:
    """The words that run a module of ours in another process, with the modules that this one has.

    `python -m` takes those of the user's folder first, such as a stranger's `json.py` next to a trace.
    """
    run = f"run_module({module!r}, run_name='__main__', alter_sys=True)"
    search = [*filter(None, sys.path)]
    code = f"import sys; sys.path[:] = {search!r}; from runpy import run_module; {run}"
    return [sys.executable, "-c", code, *words]
