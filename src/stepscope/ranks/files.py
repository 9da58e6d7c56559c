"""The files of a job: on disk, or in a store that is named by a URL."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any
from zlib import crc32

from stepscope.errors import EngineError, IngestError, one_line

_URL = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_ENDINGS = re.compile(r"\.(json|pb|stepscope|sqlite)(\.(gz|zst|xz|bz2))?$", re.IGNORECASE)
# What stores say of a file's version: fsspec's own file system, S3, Google Cloud and Azure, HTTP.
_VERSIONS = ("ETag", "etag", "mtime", "LastModified", "last_modified", "updated", "created")


@dataclass(frozen=True)
class RankFile:
    """A file of a job.

    Attributes:
        name: its path or URL.
        size: in bytes.
        version: differs once the file has changed.
    """

    name: str
    size: int
    version: int

    @classmethod
    def of(cls, path: Path) -> RankFile:
        """A file on disk.

        Raises:
            OSError: if there is none.
        """
        state = path.stat()
        return cls(str(path), state.st_size, state.st_mtime_ns)

    @property
    def folder(self) -> str:
        """The path or URL above it."""
        return self.name.rpartition("/")[0] if self.is_remote else str(Path(self.name).parent)

    @property
    def is_remote(self) -> bool:
        """Whether it is named by a URL."""
        return is_url(self.name)

    @contextmanager
    def on_disk(self) -> Iterator[Path]:
        """The file itself, or a copy as long as the context lasts.

        Raises:
            IngestError: if it is not there, or cannot be fetched.
        """
        if not self.is_remote:
            path = Path(self.name)
            if not path.exists():
                raise IngestError(
                    f"{path}: not found on a worker; every worker needs the files under the same "
                    "path"
                )
            yield path
            return
        with TemporaryDirectory(prefix="stepscope-rank-") as folder:
            path = Path(folder, PurePosixPath(self.name).name)
            _fetch(self.name, path)
            try:
                yield path
            except IngestError as error:
                raise IngestError(str(error).replace(str(path), self.name)) from error


def is_url(source: str) -> bool:
    """Whether a source is a URL, such as `s3://bucket/job/`.

    Example:
        >>> is_url("s3://bucket/job/"), is_url("C:\\\\jobs"), is_url("jobs/run 7")
        (True, False, False)
    """
    return _URL.match(source) is not None


def files_at(source: str | Path) -> list[RankFile]:
    """The traces of a job: of a folder or a URL, and of what is below, one folder per machine.

    Raises:
        IngestError: if there is none, or the store cannot be reached.
    """
    name = str(source)
    files = _of_url(name) if is_url(name) else _of_folder(Path(name))
    if not files:
        raise IngestError(f"{source}: holds no trace; expected one file per rank")
    return files


def _of_folder(source: Path) -> list[RankFile]:
    from stepscope.ingest import is_trace

    if not source.is_dir():
        raise IngestError(f"{source}: expected a folder with one file per rank")
    found = sorted(path for path in source.rglob("*") if path.is_file() and path.name[:1] != ".")
    return [RankFile.of(path) for path in found if is_trace(path)]


def _of_url(source: str) -> list[RankFile]:
    """Told by their names: reading the beginning of each would take a request a file."""
    with _one_line_errors(source):
        store, path = _store(source)
        found: dict[str, dict[str, Any]] = store.find(path, detail=True)
    files = [
        RankFile(store.unstrip_protocol(name), int(facts.get("size") or 0), _version(facts))
        for name, facts in sorted(found.items())
    ]
    return [one for one in files if _ENDINGS.search(one.name)]


def _fetch(url: str, path: Path) -> None:
    with _one_line_errors(url):
        store, name = _store(url)
        store.get_file(name, str(path))


def _store(url: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs  # type: ignore[import-untyped]
    except ImportError as error:
        raise EngineError(
            f"{url}: reading from a URL needs fsspec; install it with: "
            "pip install 'stepscope[remote]'"
        ) from error
    found: tuple[Any, str] = url_to_fs(url)
    return found


@contextmanager
def _one_line_errors(url: str) -> Iterator[None]:
    try:
        yield
    except (EngineError, IngestError):
        raise
    except ImportError as error:  # fsspec names the package that a kind of store needs
        raise EngineError(f"{url}: {type(error).__name__}: {one_line(error)}") from error
    except Exception as error:  # each store has its own
        raise IngestError(
            f"{url}: cannot be read: {type(error).__name__}: {one_line(error)}"
        ) from error


def _version(facts: dict[str, Any]) -> int:
    known = [str(facts[key]) for key in _VERSIONS if facts.get(key)]
    return crc32("\n".join(known).encode())
