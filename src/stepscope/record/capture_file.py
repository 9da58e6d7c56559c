"""The capture file: written whole or not at all, and never at the cost of another capture.

Its format: docs/reference/capture_format.md.
"""

import itertools
import json
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from stepscope.base.unfinished_files import unfinished_file
from stepscope.errors import CaptureError
from stepscope.record.options import SUFFIX, Rank
from stepscope.record.patch import ignoring
from stepscope.record.unreplaced import os, time

FORMAT = "stepscope capture"
VERSION = 1
_QUICK = 1  # zlib level: the run waits while it is written
_MANIFEST = "manifest.json"
RECORDINGS = {"trace.json", "trace.xplane.pb", "contexts.json"}
_LARGE_BYTES = 1 << 30  # of a member, from which on its size may not fit 32 bits
# As in native/flusher.cpp; chosen: the program waits, for good where it runs as `flock FOLDER COMMAND`.
_LOCK_LOOK_S, _LOCKED_S = 0.05, 1.0
_CHUNK_BYTES = 1 << 20  # copied at once
Member = bytes | dict[str, Any] | Callable[[Path], object]


def write_capture(
    path: Path,  # the file to write; by default an earlier capture is replaced
    manifest: dict[str, Any],  # the content of manifest.json
    modules: dict[str, Any],  # the content of modules.json
    # What was recorded, by name: bytes, what JSON can write, or a function that writes to a path.
    members: Mapping[str, Member],
    # Moves the complete file, which it is given, to its final place.
    publish: Callable[[Path], object] | None = None,
) -> None:
    """Write a capture file, all or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with unfinished_file(path) as partial:
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED, compresslevel=_QUICK) as archive:
            _add(archive, "modules.json", modules)
            for name, content in members.items():
                _add_member(archive, path, name, content)
            # The last member, so that `replace_manifest` need not write the others again.
            _add(archive, _MANIFEST, manifest)
        publish(partial) if publish else partial.replace(path)


def _add_member(archive: zipfile.ZipFile, path: Path, name: str, content: Member) -> None:
    if not callable(content):
        _add(archive, name, content)
        return
    with unfinished_file(path, name) as partial:
        content(partial)
        with partial.open("rb") as source, archive.open(name, "w", force_zip64=True) as member:
            shutil.copyfileobj(source, member, _CHUNK_BYTES)


def replace_manifest(path: Path, changes: dict[str, Any]) -> None:
    """Change keys in the manifest of a capture, all or nothing."""
    with unfinished_file(path) as partial:
        shutil.copyfile(path, partial)
        with zipfile.ZipFile(partial, "a", zipfile.ZIP_DEFLATED, compresslevel=_QUICK) as archive:
            _change_last_member(archive, changes)
        partial.replace(path)


def _change_last_member(archive: zipfile.ZipFile, changes: dict[str, Any]) -> None:
    last = archive.infolist()[-1]
    if last.filename != _MANIFEST:
        raise OSError(f"{archive.filename} was not written by this version")
    manifest = json.loads(archive.read(last)) | changes
    archive.filelist.remove(last)
    del archive.NameToInfo[_MANIFEST]
    archive.start_dir = last.header_offset
    _add(archive, _MANIFEST, manifest)


def _add(archive: zipfile.ZipFile, name: str, content: bytes | dict[str, Any]) -> None:
    """A member without a date: a clock that the program, or its machine, has set may have none of zip's."""
    indent = 1 if name == _MANIFEST else None
    data = content if isinstance(content, bytes) else json.dumps(content, indent=indent).encode()
    with archive.open(name, "w", force_zip64=len(data) > _LARGE_BYTES) as member:
        member.write(data)


def check_target(path: Path, is_ours: Callable[[Path], bool] | None = None) -> None:
    """Refuse a target that cannot or must not be written, before the run starts.

    Raises CaptureError if the folder is missing or read-only, or the file is not an earlier capture.
    """
    folder, why = next(parent for parent in path.absolute().parents if parent.exists()), ""
    # A device such as /dev/zero has no end to look at.
    if path.exists() and not (path.is_file() and (not path.stat().st_size or (is_ours or is_capture)(path))):
        why = "the file exists and is not a capture"
    elif not _is_writable(folder):
        why = f"the folder {folder} is not writable"
    if why:
        raise CaptureError(f"cannot write the capture to {path}: {why}; choose another file with -o")


def _is_writable(folder: Path) -> bool:
    """Tried, because permissions alone do not decide (root, quotas, network file systems)."""
    with ignoring(OSError), TemporaryFile(dir=folder):
        return True
    return False


def has_recording(path: Path) -> bool:
    """Whether `path` is a capture that holds a trace or contexts, and not only how a run ended."""
    with ignoring(Exception), zipfile.ZipFile(path) as archive:  # it may be damaged
        return bool(RECORDINGS & set(archive.namelist()))
    return False


def is_capture(path: Path) -> bool:
    with ignoring(Exception), zipfile.ZipFile(path) as archive:  # it may be damaged, or none
        return bool(json.loads(archive.read(_MANIFEST))["format"] == FORMAT)
    return False


Identity = tuple[int, int, int, int]


class CaptureFile:
    """Where a run writes its capture, perhaps several times.

    A file that was there before the run is kept under another name (`train.1.stepscope`). A file
    that another process wrote during the run stays, and this capture gets another name
    (`train-2.stepscope`). A capture without a recording never replaces one with a recording.
    """

    def __init__(self, path: Path, rank: Rank | None = None, overwrite: bool = False) -> None:
        self.path = path  # that was written, or will be
        self.note = ""  # what was done to protect another capture, in words
        self.is_written = False  # whether `path` holds this run's capture
        self._rank = rank or Rank()
        self._overwrite = overwrite
        self._before = identity(path)
        self._own: Identity | None = None
        self._base = next((parent for parent in path.parents if parent.exists()), path.parent)

    def write(self, manifest: dict[str, Any], modules: dict[str, Any], members: Mapping[str, Member]) -> None:
        """Write the capture; the arguments are those of `write_capture`.

        Raises OSError if the file cannot be written; whatever was there is still there.
        """
        if not self._base.is_dir():
            raise FileNotFoundError(2, "the folder no longer exists", str(self._base))

        def publish(partial: Path) -> None:
            with locked(partial.parent):
                self._publish(partial, not RECORDINGS.isdisjoint(members))

        write_capture(self.path, manifest, modules, members, publish)

    def update_manifest(self, changes: dict[str, Any]) -> None:
        """Set keys in the manifest of the file that was written, if it is still there.

        Raises OSError if the file cannot be written; it is unchanged.
        """
        with locked(self.path.parent):
            if self._own is not None and identity(self.path) == self._own:
                replace_manifest(self.path, changes)
                self._own = identity(self.path)

    def flush_target(self) -> tuple[Path, Path | None, Path, Identity | tuple[()]]:
        """What a writer outside Python needs to protect other captures as `write` does.

        The file; where one goes that was there before the run, None to replace it; the folder that must
        still exist; and the version of the file before, empty where there was none.
        """
        kept = None if self._overwrite else self._free_name(".").absolute()
        return self.path.absolute(), kept, self._base.absolute(), self._before or ()

    def adopt(self, own: Identity, kept: str) -> None:
        """Take a file that such a writer wrote last for this run's, by its `identity`.

        `kept` is where it put the file that was there before; empty if there was none.
        """
        self._own, self.is_written = own, True
        if kept:
            self._kept_as(Path(kept))

    def _publish(self, partial: Path, has_content: bool) -> None:
        there = identity(self.path)
        if there not in (None, self._own, self._before):
            self.note = f"another run wrote {self._shown.name} meanwhile"
            self.path = self._free_name("-")
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
        self._own = identity(self.path)
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
        self._kept_as(kept)

    def _kept_as(self, kept: Path) -> None:
        self._keep_surplus_ranks(kept.parent)
        self.note = f"kept the earlier capture as {(kept.parent if self._is_ranked else kept).name}"

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
                with ignoring(OSError):
                    file.rename(folder / file.name)


def identity(path: Path) -> Identity | None:
    """What tells one version of a file from another; None where there is none."""
    with ignoring(OSError):
        state = path.stat()
        return state.st_dev, state.st_ino, state.st_mtime_ns, state.st_size
    return None


@contextmanager
def locked(folder: Path, patience_s: float = _LOCKED_S) -> Iterator[None]:
    """Let one process at a time do this in a folder, where the system can lock folders.

    A process that is stopped while it holds the lock must not hold up others for good.
    """
    descriptor = -1
    try:
        with ignoring(ImportError, OSError):
            import fcntl

            descriptor = os.open(folder, os.O_RDONLY)
            for _ in range(round(patience_s / _LOCK_LOOK_S)):
                with ignoring(BlockingIOError):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                time.sleep(_LOCK_LOOK_S)
        yield
    finally:
        if descriptor >= 0:
            os.close(descriptor)
