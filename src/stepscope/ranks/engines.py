"""Where files are read: in processes of this machine, or on a Dask cluster.

An engine is a function of files and of the work for one file. The work depends on the file alone,
so it does not matter where or how often it is done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import PurePath
from typing import Any, Protocol

from stepscope.errors import EngineError, IngestError, one_line
from stepscope.parallel import attempt, on_each
from stepscope.ranks.files import RankFile
from stepscope.ranks.sketch import Sketch
from stepscope.version import __version__

_CONNECT_S = 10


Finished = Callable[[RankFile, Sketch | IngestError], None]


class Engine(Protocol):
    """Does the same work on each of several files."""

    def __call__(
        self,
        files: Sequence[RankFile],
        work: Callable[[RankFile], Sketch],
        finished: Finished,
    ) -> dict[RankFile, Sketch | IngestError]:
        """The sketch of each file, or why there is none; `finished` is called as each is done."""


def on_this_machine(
    files: Sequence[RankFile], work: Callable[[RankFile], Sketch], finished: Finished
) -> dict[RankFile, Sketch | IngestError]:
    """Processes of this machine, at most one per core."""
    return on_each({file: file.size for file in files}, work, None, finished)


def on_dask(address: str) -> Engine:
    """The workers of a Dask cluster, which retries what lost workers were doing.

    Args:
        address: of the scheduler, such as `tcp://host:8786`.

    Raises:
        EngineError: if Dask is not installed, the scheduler cannot be reached, it has no worker,
            or its workers have no stepscope or another version.
    """
    return partial(_on_cluster, address)


def _on_cluster(
    address: str,
    files: Sequence[RankFile],
    work: Callable[[RankFile], Sketch],
    finished: Finished,
) -> dict[RankFile, Sketch | IngestError]:
    from distributed import as_completed

    with _client(address) as client:
        _check_workers(client, address)
        futures = {
            client.submit(
                attempt, work, file, pure=False, key=f"sketch-{row}-{PurePath(file.name).name}"
            ): file
            for row, file in enumerate(files)
        }
        for future in as_completed(futures):
            finished(futures[future], _result(future, futures[future]))
        return {file: _result(future, file) for future, file in futures.items()}


def _result(future: Any, file: RankFile) -> Sketch | IngestError:
    error = future.exception()
    if error is None:
        result: Sketch | IngestError = future.result()
        return result
    return IngestError(
        f"{file.name}: the cluster gave up: {type(error).__name__}: {one_line(error)}"
    )


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
        raise EngineError(
            f"the scheduler at {address} has no worker; start one with: dask worker {address}"
        )
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
