"""The file of a capture: written whole or not at all, and never at the cost of another capture."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.capture.archive import Member, has_recording, replace_manifest, write_capture
from stepscope.capture.options import SUFFIX, Rank

Identity = tuple[int, int, int, int]


@dataclass(frozen=True)
class FlushTarget:
    """Where to write a capture while the run goes on.

    Attributes:
        path: the file.
        kept: where a file goes that was there before the run; None to replace it.
        base: the folder that must still exist.
        before: the version of that file; empty where there was none.
    """

    path: Path
    kept: Path | None
    base: Path
    before: Identity | tuple[()]


class CaptureFile:
    """Where a run writes its capture, perhaps several times.

    A file that was there before the run is kept under another name (`train.1.stepscope`). A file
    that another process wrote during the run stays, and this capture gets another name
    (`train-2.stepscope`). A capture without a recording never replaces one with a recording.

    Args:
        path: the requested file.
        rank: of several ranks, each has its own file in a folder.
        overwrite: replace the file that was there before the run.

    Attributes:
        path: the file that was written, or will be.
        note: what was done to protect another capture, in words; empty if nothing was necessary.
        is_written: whether `path` holds this run's capture.
    """

    def __init__(self, path: Path, rank: Rank | None = None, overwrite: bool = False) -> None:
        self.path = path
        self.note = ""
        self.is_written = False
        self._rank = rank or Rank()
        self._overwrite = overwrite
        self._before = _identity(path)
        self._own: Identity | None = None
        self._base = _existing_folder(path)

    def write(
        self,
        manifest: dict[str, Any],
        modules: dict[str, Any],
        export: Callable[[Path], object] | None,
        contexts: bytes | None = None,
        member: str = "trace.json",
        members: Mapping[str, Member] | None = None,
    ) -> None:
        """Write the capture; the arguments are those of `write_capture`.

        Raises:
            OSError: the file cannot be written; whatever was there is still there.
        """
        if not self._base.is_dir():
            raise FileNotFoundError(2, "the folder no longer exists", str(self._base))
        has_content = export is not None or contexts is not None

        def publish(partial: Path) -> None:
            with _locked(partial.parent):
                self._publish(partial, has_content)

        write_capture(self.path, manifest, modules, export, contexts, member, members, publish)

    def update_manifest(self, changes: dict[str, Any]) -> None:
        """Set keys in the manifest of the file that was written, if it is still there.

        Raises:
            OSError: the file cannot be written; it is unchanged.
        """
        with _locked(self.path.parent):
            if self._own is not None and _identity(self.path) == self._own:
                replace_manifest(self.path, changes)
                self._own = _identity(self.path)

    def flush_target(self) -> FlushTarget:
        """What a writer outside Python needs to protect other captures as `write` does."""
        kept = None if self._overwrite else self._free_name(".").absolute()
        return FlushTarget(self.path.absolute(), kept, self._base.absolute(), self._before or ())

    def adopt(self, own: Identity, kept: str) -> None:
        """Take a file that such a writer wrote last for this run's.

        Args:
            own: what tells its version from another one.
            kept: where it put the file that was there before; empty if there was none.
        """
        self._own, self.is_written = own, True
        if kept:
            folder = Path(kept).parent
            self._keep_surplus_ranks(folder)
            shown = folder if self._is_ranked else Path(kept)
            self.note = f"kept the earlier capture as {shown.name}"

    def _publish(self, partial: Path, has_content: bool) -> None:
        there = _identity(self.path)
        if there not in (None, self._own, self._before):
            self._choose_distinct_name()
        elif there not in (None, self._own) and not has_content and has_recording(self.path):
            self.note = f"kept the earlier capture {self._shown.name}, which has a recording"
            return
        elif there == self._before and there is not None and not self._overwrite:
            self._keep_and_replace(partial)
            return
        self._replace(partial)

    def _replace(self, partial: Path) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial.replace(self.path)
        self._own = _identity(self.path)
        self.is_written = True

    def _keep_and_replace(self, partial: Path) -> None:
        kept = self._free_name(".")
        kept.parent.mkdir(parents=True, exist_ok=True)
        self.path.rename(kept)
        try:
            self._replace(partial)
        except OSError:
            kept.rename(self.path)
            raise
        self._keep_surplus_ranks(kept.parent)
        self.note = f"kept the earlier capture as {(kept.parent if self._is_ranked else kept).name}"

    def _choose_distinct_name(self) -> None:
        self.note = f"another run wrote {self._shown.name} meanwhile"
        self.path = self._free_name("-")

    def _free_name(self, separator: str) -> Path:
        first = 1 if separator == "." else 2
        names = (self._numbered(f"{separator}{n}") for n in itertools.count(first))
        return next(name for name in names if not name.exists())

    def _numbered(self, number: str) -> Path:
        if self._is_ranked:
            folder = self.path.parent
            return folder.with_name(folder.name + number) / self.path.name
        return self.path.with_name(f"{self.path.stem}{number}{self.path.suffix}")

    @property
    def _shown(self) -> Path:
        return self.path.parent if self._is_ranked else self.path

    @property
    def _is_ranked(self) -> bool:
        return self._rank.world_size > 1

    def _keep_surplus_ranks(self, folder: Path) -> None:
        """A run with fewer ranks than the earlier one must not be read together with its files."""
        if not self._is_ranked or self._rank.rank != 0:
            return
        for file in self.path.parent.glob(f"rank*{SUFFIX}"):
            number = re.fullmatch(rf"rank(\d+){re.escape(SUFFIX)}", file.name)
            if number and int(number[1]) >= self._rank.world_size:
                with suppress(OSError):
                    file.rename(folder / file.name)


def _identity(path: Path) -> Identity | None:
    """What tells one version of a file from another; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def _existing_folder(path: Path) -> Path:
    return next((parent for parent in path.parents if parent.exists()), path.parent)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one process at a time choose names in a folder, where the system can lock folders."""
    try:
        import fcntl

        descriptor = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        yield
        return
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


_NEEDED = 16  # the archive, its parts, a locked folder, and modules that are imported on the way


@contextmanager
def spare_descriptors() -> Iterator[None]:
    """Make sure that some files can be opened meanwhile.

    Where the soft limit is in the way, it is raised for that time, as far as the hard limit allows.

    Raises:
        OSError: not enough files can be opened.
    """
    try:
        _probe()
    except OSError:
        with _raised_limit():
            _probe()
            yield
    else:
        yield


def _probe() -> None:
    """Open as many descriptors as are needed, and close them; OSError if that fails."""
    opened: list[int] = []
    try:
        while len(opened) < _NEEDED:
            opened.append(os.open(os.devnull, os.O_RDONLY))
    finally:
        for descriptor in opened:
            os.close(descriptor)


@contextmanager
def _raised_limit() -> Iterator[None]:
    try:
        import resource
    except ImportError:  # Windows has no such limit
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = soft + 2 * _NEEDED
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        yield
    finally:
        with suppress(ValueError, OSError):  # the program has changed its limits meanwhile
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
