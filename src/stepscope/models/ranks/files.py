"""The files of a job: on disk, or in a store that is named by a URL."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from glob import glob
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any
from zlib import crc32

from stepscope.errors import EngineError, IngestError, one_line

_PATTERN = re.compile(r"[*?\[]")
_URL = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_ENDINGS = re.compile(r"\.(json|pb|stepscope|sqlite)(\.(gz|zst|xz|bz2))?$", re.IGNORECASE)
# What stores say of a file's version: fsspec's own file system, S3, Google Cloud and Azure, HTTP.
_VERSIONS = ("ETag", "etag", "mtime", "LastModified", "last_modified", "updated", "created")


@dataclass(frozen=True)
class RankFile:
    """A file of a job."""

    name: str
    size: int  # in bytes
    version: int

    def __str__(self) -> str:
        return self.name

    @classmethod
    def of(cls, path: Path) -> "RankFile":
        """A file on disk; raises OSError if there is none."""
        state = path.stat()
        return cls(str(path), state.st_size, state.st_mtime_ns)

    @property
    def folder(self) -> str:
        """The path or URL above it."""
        return self.name.rpartition("/")[0] if is_url(self.name) else str(Path(self.name).parent)

    @contextmanager
    def on_disk(self) -> Iterator[Path]:
        """The file itself, or a copy as long as the context lasts; raises IngestError if it is not
        there, or cannot be fetched."""
        if not is_url(self.name):
            path = Path(self.name)
            if not path.exists():
                raise IngestError(
                    f"{path}: not found on a worker; every worker needs the files under the same path"
                )
            yield path
            return
        with TemporaryDirectory(prefix="stepscope-rank-") as folder:
            path = Path(folder, PurePosixPath(self.name).name)
            with _one_line_errors(self.name):
                store, name = _store(self.name)
                store.get_file(name, str(path))
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


def files_at(*sources: str | Path) -> list[RankFile]:
    """The traces of a job: of folders and URLs with all below, of patterns such as
    `/jobs/run7/node-*`, and single files; all on disk or all in stores. Raises IngestError if there
    is none, or the store cannot be reached."""
    names = [str(source) for source in sources]
    if len({is_url(name) for name in names}) > 1:
        raise IngestError("URLs and folders of this machine cannot be one job")
    found = [one for name in names for one in (_of_url(name) if is_url(name) else _of_path(name))]
    files = list({one.name: one for one in found}.values())
    # JAX also writes part of each profile as JSON, next to it.
    of_jax = {one.folder for one in files if ".xplane.pb" in one.name}
    files = [one for one in files if ".xplane.pb" in one.name or one.folder not in of_jax]
    if not files:
        raise IngestError(f"{', '.join(names)}: holds no trace; expected one file per rank")
    return files


def paths_at(source: str) -> list[Path]:
    """The files of a folder with all below, of what a pattern matches, or the file; no hidden ones."""
    found = [source] if Path(source).exists() else glob(source, recursive=True)  # noqa: PTH207 (may be absolute)
    try:
        below = {path for root in map(Path, found) for path in (root.rglob("*") if root.is_dir() else [root])}
    except RecursionError:
        raise IngestError(
            f"{source}: has too many folders in folders; give the one with the traces"
        ) from None
    return sorted(path for path in below if path.is_file() and path.name[:1] != ".")


def _of_path(source: str) -> list[RankFile]:
    """The traces of a folder, of what a pattern matches, or the file itself."""
    from stepscope.read import is_trace

    path = Path(source)
    if path.is_file():
        return [RankFile.of(path)]
    if not path.is_dir() and (path.exists() or not _PATTERN.search(source)):
        raise IngestError(f"{path}: no such folder; expected one with a file per rank")
    return [RankFile.of(one) for one in paths_at(source) if is_trace(one)]


def _of_url(source: str) -> list[RankFile]:
    """Told by their names: reading the beginning of each would take a request a file."""
    with _one_line_errors(source):
        store, path = _store(source)
        roots = store.glob(path) if _PATTERN.search(path) else [path]
        found: dict[str, dict[str, Any]] = {}
        for root in roots:
            found |= store.find(root, detail=True)
    files = [
        RankFile(
            store.unstrip_protocol(name),
            int(facts.get("size") or 0),
            crc32("\n".join(str(facts[key]) for key in _VERSIONS if facts.get(key)).encode()),
        )
        for name, facts in sorted(found.items())
    ]
    return [one for one in files if _ENDINGS.search(one.name)]


def _store(url: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs  # type: ignore[import-untyped]
    except ImportError as error:
        raise EngineError(
            f"{url}: reading from a URL needs fsspec; install it with: pip install 'stepscope[remote]'"
        ) from error
    return url_to_fs(url)


@contextmanager
def _one_line_errors(url: str) -> Iterator[None]:
    try:
        yield
    except (EngineError, IngestError):
        raise
    except ImportError as error:  # fsspec names the package that a kind of store needs
        raise EngineError(f"{url}: {type(error).__name__}: {one_line(error)}") from error
    except Exception as error:  # each store has its own
        raise IngestError(f"{url}: cannot be read: {type(error).__name__}: {one_line(error)}") from error
