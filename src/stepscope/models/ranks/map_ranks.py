"""Sketches of many files, each a function of its file alone; the sketches may be kept.

Files are read by an engine, a function of files and of the work for one file: processes of this machine, or a
Dask cluster. The work depends on the file alone, so it does not matter where or how often it is done.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from queue import Empty, Queue
from typing import Any

import msgspec

from stepscope.base.parallel import attempt, on_each
from stepscope.errors import EngineError, IngestError, one_line
from stepscope.facts.annotate.ranks import last_cycles
from stepscope.models.ranks.dataset import (
    Kept,
    files_with_tables,
    keep_sketch,
    keep_tables,
    move_tables,
    read_sketches,
)
from stepscope.models.ranks.files import RankFile, is_url
from stepscope.models.ranks.sketch import UNKNOWN_RANK, VERSION, Sketch, short_ranks, sketch_of
from stepscope.version import __version__

_LOOK_S = 5  # seconds without a file that is done until the workers are looked at; chosen
_GONE_S = 60  # seconds without any worker until they count as lost; chosen: a restart takes less
_CONNECT_S = 10  # seconds until a scheduler counts as unreachable; chosen: far more than an answer takes


@dataclass(frozen=True)
class RankResult:
    """What became of one file: its sketch, or why it could not be read.

    `renumbered` is true where the file names no rank, or one that another file has.
    """

    file: str
    sketch: Sketch | None
    error: str = ""
    renumbered: bool = False


Outcome = Sketch | IngestError
Work = Callable[[RankFile], Sketch]
Finished = Callable[[RankFile, Outcome], None]
Engine = Callable[[Sequence[RankFile], Work, Finished], dict[RankFile, Outcome]]
"""Does the work on each file; calls `finished` as each is done."""


def on_this_machine(files: Sequence[RankFile], work: Work, finished: Finished) -> dict[RankFile, Outcome]:
    """Processes of this machine, at most one per core."""
    return on_each({file: file.size for file in files}, work, None, finished)


def sketch_files(
    files: Sequence[Path | RankFile],
    dataset: Path | None = None,
    engine: Engine = on_this_machine,
    finished: Callable[[str], None] = lambda file: None,
    tables: bool = False,
    cache: bool = False,
) -> list[RankResult]:
    """Sketch each file.

    Args:
        dataset: a folder to keep the sketches in, `rank=N/*.msgpack`; sketches of files that have
            not changed are taken from there, or from its subfolders. Each is written as soon as its
            file is read, so what was interrupted goes on where it stopped.
        engine: where files are read; by default processes of this machine.
        tables: whether to keep the tables of each trace next to its sketch, as Parquet.
        cache: whether to use and update the cache of this machine's user.

    Returns:
        A result for each file, by rank; files that cannot be read are at the end, with the reason.
    """
    all_files = [RankFile.of(one) if isinstance(one, Path) else one for one in files]
    known = _known(all_files, dataset, tables) if dataset else {}
    left = [one for one in all_files if one not in known]
    folders = {file.folder if is_url(file.name) else str(Path(file.folder).absolute()) for file in all_files}
    above = os.path.commonpath(folders) if len(folders) > 1 else ""  # its subfolders are machines

    def keep(file: RankFile, result: Sketch | IngestError) -> None:
        if dataset and not isinstance(result, IngestError):
            keep_sketch(dataset, file, result)
        finished(file.name)

    sketch = _cached_sketch if cache else _sketch_file
    made = engine(left, partial(sketch, above, dataset if tables else None), keep) if left else {}
    failed = {file.name: str(one) for file, one in made.items() if isinstance(one, IngestError)}
    sketches = {  # with the machine that its folder names, as it may be known only now
        file: msgspec.structs.replace(one.sketch, node=_node(above, file) or one.sketch.node)
        for file, one in known.items()
    }
    sketches |= {file: one for file, one in made.items() if not isinstance(one, IngestError)}
    sketched = [(one.name, sketches[one]) for one in all_files if one in sketches]
    earlier = _earlier_cycles(sketched)
    results = without_short(numbered([one for one in sketched if one[0] not in earlier]))
    if dataset and tables:
        move_tables(dataset, {one.file: one.sketch.rank for one in results if one.sketch})
    results.sort(key=lambda one: one.sketch is None)
    return [*results, *(RankResult(name, None, reason) for name, reason in (failed | earlier).items())]


def _known(files: Sequence[RankFile], dataset: Path, tables: bool) -> dict[RankFile, Kept]:
    """The kept sketches of files that have not changed, with `tables` of those that have them."""
    kept = read_sketches(dataset)
    known = {one: kept[one.name] for one in files if one.name in kept and kept[one.name].is_current(one)}
    having = files_with_tables(dataset, files) if tables else known.keys()
    return {file: one for file, one in known.items() if file in having}


def numbered(sketches: Sequence[tuple[str, Sketch]]) -> list[RankResult]:
    """The results by rank; files that name no rank, or one that is taken, get a free number."""
    from stepscope.read.rank_folder import distinct_ranks

    known = [None if one.rank == UNKNOWN_RANK else one.rank for _, one in sketches]
    ranks, _ = distinct_ranks([Path(file) for file, _ in sketches], known)
    return [
        RankResult(
            sketches[row][0],
            msgspec.structs.replace(sketches[row][1], rank=ranks[row]),
            renumbered=ranks[row] != known[row],
        )
        for row in sorted(range(len(ranks)), key=ranks.__getitem__)
    ]


def _earlier_cycles(sketches: Sequence[tuple[str, Sketch]]) -> dict[str, str]:
    """Why files are left out that a process wrote before its last one, by their names."""
    known = [(os.path.dirname(name), one.rank) for name, one in sketches]  # noqa: PTH120 (or a URL)
    last = last_cycles(known, [one.recording for _, one in sketches])
    return {
        name: f"{name}: an earlier recording of the process that wrote "
        f"{os.path.basename(sketches[row][0])}; left out, since it is no other rank"  # noqa: PTH119
        for (name, one), row in zip(sketches, last, strict=True)
        if one is not sketches[row][1]
    }


def without_short(results: Sequence[RankResult]) -> list[RankResult]:
    """The results; ranks of too few steps get a reason instead of their sketch."""
    short = short_ranks([one.sketch for one in results if one.sketch])
    return [
        RankResult(
            one.file,
            None,
            f"{one.file}: rank {one.sketch.rank} has fewer than half of the steps "
            f"of the others ({len(one.sketch.steps)}) and is left out; is its file cut off?",
        )
        if one.sketch and one.sketch.rank in short
        else one
        for one in results
    ]


def _cached_sketch(above: str, tables: Path | None, file: RankFile) -> Sketch:
    """The sketch of a file on disk, from the cache if it was made before."""
    from stepscope.facts.load import key_of_text
    from stepscope.trace.cache import fetch_text, keep_text

    key = key_of_text(Path(file.name), None, False, ("sketch", VERSION, _node(above, file)), ("ranks",))
    text = fetch_text(key) if key else None
    if text is not None:
        with suppress(msgspec.MsgspecError):
            return msgspec.msgpack.decode(text, type=Sketch)
    sketch = _sketch_file(above, tables, file)
    if key:
        keep_text(key, msgspec.msgpack.encode(sketch))
    return sketch


def _sketch_file(above: str, tables: Path | None, file: RankFile) -> Sketch:
    from stepscope.facts.annotate.steps.step_table import ranks_with_steps
    from stepscope.facts.load import open_file
    from stepscope.read.rank_folder import rank_of

    with file.on_disk() as path:
        trace = open_file(path, None, cache=False)
        if not len(trace["steps"]):
            raise IngestError(f"{path}: holds no recorded step")
        if len(several := ranks_with_steps(trace)) > 1:
            raise IngestError(f"{path}: holds {len(several)} ranks; name this file alone")
        known = rank_of(path, trace.metadata)
        rank = UNKNOWN_RANK if known is None else known
        sketch = sketch_of(trace, _node(above, file))
        if tables:
            keep_tables(tables, file, rank, trace)
    return msgspec.structs.replace(sketch, rank=rank)


def _node(above: str, file: RankFile) -> str:
    """The machine that a file's folder names; empty if all files are in one folder."""
    return os.path.relpath(file.folder, above) if above else ""


def on_dask(
    address: str, files: Sequence[RankFile], work: Work, finished: Finished
) -> dict[RankFile, Outcome]:
    """The workers of a Dask cluster, which retries what lost workers were doing.

    Args:
        address: of the scheduler, such as `tcp://host:8786`.

    Raises:
        EngineError: if Dask is not installed, the scheduler cannot be reached, it has no worker,
            its workers have no stepscope or another version, or none can work for lack of memory.
    """
    with _client(address) as client:
        _check_workers(client, address)
        keys = [f"sketch-{row}-{PurePath(file.name).name}" for row, file in enumerate(files)]
        tasks = zip(keys, files, strict=True)
        futures = {client.submit(attempt, work, file, pure=False, key=key): file for key, file in tasks}
        done: Queue[Any] = Queue()
        for future in futures:
            future.add_done_callback(done.put)
        results: dict[RankFile, Outcome] = dict.fromkeys(files, IngestError("not read"))
        left = dict.fromkeys(files)
        while left:
            future = _next_done(client, done, left)
            file = futures[future]
            del left[file]
            results[file] = _result(future, file)
            finished(file, results[file])
        return results


def _next_done(client: Any, done: Queue[Any], left: Iterable[RankFile]) -> Any:
    """The next future that is done; raises EngineError if no worker can work any more."""
    waited_s = 0.0
    while True:
        with suppress(Empty):
            return done.get(timeout=_LOOK_S)
        workers = client.scheduler_info()["workers"]
        if any(one["status"] == "running" for one in workers.values()):
            waited_s = 0
            continue
        waited_s += _LOOK_S
        if waited_s >= (_GONE_S if not workers else 2 * _LOOK_S):
            raise EngineError(_why_idle(workers, left))


def _why_idle(workers: Mapping[str, Any], left: Iterable[RankFile]) -> str:
    from stepscope.read.rank_folder import shown

    files = f"not read: {shown([file.name for file in left])}"
    if not workers:
        return f"all workers of the cluster are gone; {files}"
    address, facts = next(iter(workers.items()))
    megabytes = facts["memory_limit"] // 10**6
    return (
        f"no worker can work: {address} is {facts['status']} at its limit of {megabytes} MB of memory; "
        f"{files}; give each worker more, as with: dask worker --memory-limit 4GB"
    )


def _result(future: Any, file: RankFile) -> Outcome:
    error = future.exception()
    if error is None:
        return future.result()
    if type(error).__name__ == "KilledWorker":
        return IngestError(
            f"{file.name}: every worker that read it ended, possibly out of memory; give each more, as "
            "with: dask worker --memory-limit 4GB"
        )
    return IngestError(f"{file.name}: the cluster gave up: {type(error).__name__}: {one_line(error)}")


@contextmanager
def _client(address: str) -> Iterator[Any]:
    try:
        from distributed import Client
    except ImportError as error:
        raise EngineError(
            "--scheduler needs Dask on this machine; install it with: pip install 'stepscope[dask]'"
        ) from error
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # its errors become ours
    try:
        client = Client(address, timeout=_CONNECT_S)
    except Exception as error:  # Dask raises OSError, ValueError, TimeoutError and others
        raise EngineError(
            f"cannot reach a Dask scheduler at {address}: {one_line(error)}; "
            "expected an address such as tcp://host:8786"
        ) from error
    try:
        yield client
    finally:
        client.close()


def _check_workers(client: Any, address: str) -> None:
    """Every worker must be able to do what this program would do itself."""

    def version() -> str:  # sent by value, as a worker may have no stepscope to import it from
        from stepscope.version import __version__ as installed

        return installed

    found = client.run(version, on_error="return")
    if not found:
        raise EngineError(f"the scheduler at {address} has no worker; start one with: dask worker {address}")
    for worker, answer in sorted(found.items()):
        if isinstance(answer, Exception):
            raise EngineError(
                f"worker {worker} cannot import stepscope: {one_line(answer)}; "
                f"install stepscope {__version__} there"
            )
        if answer != __version__:
            raise EngineError(
                f"worker {worker} has stepscope {answer}, this is {__version__}; "
                "install the same version on both"
            )
