"""The capture file on disk: docs/reference/capture_format.md."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from stepscope.errors import CaptureError
from stepscope.unfinished_files import unfinished

FORMAT = "stepscope capture"
VERSION = 1
_QUICK = 1
_MANIFEST = "manifest.json"
_RECORDINGS = {"trace.json", "trace.xplane.pb", "contexts.json"}
_CHUNK_BYTES = 1 << 20
Member = dict[str, Any] | Callable[[Path], object]


def write_capture(
    path: Path,
    manifest: dict[str, Any],
    modules: dict[str, Any],
    export: Callable[[Path], object] | None,
    contexts: bytes | None = None,
    member: str = "trace.json",
    members: Mapping[str, Member] | None = None,
    publish: Callable[[Path], object] | None = None,
) -> None:
    """Write a capture file, all or nothing.

    Args:
        path: the file to write; by default an earlier capture is replaced.
        manifest: the content of manifest.json.
        modules: the content of modules.json.
        export: writes the profiler's own file to a given path; None where nothing was recorded.
        contexts: the content of contexts.json, where contexts were collected.
        member: the name of the profiler's file in the archive.
        members: more files, by name: what JSON can write, or a function that writes to a path.
        publish: moves the complete file, which it is given, to its final place.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = unfinished(path)
    trace = unfinished(path, member)
    try:
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED, compresslevel=_QUICK) as archive:
            archive.writestr("modules.json", json.dumps(modules))
            if export:
                export(trace)
                _add_file(archive, trace, member)
            if contexts is not None:
                archive.writestr("contexts.json", contexts)
            for name, content in (members or {}).items():
                _add_member(archive, path, name, content)
            # The last member, so that `replace_manifest` need not write the others again.
            archive.writestr(_MANIFEST, json.dumps(manifest, indent=1))
        (publish or _move_to(path))(partial)
    finally:
        _remove(partial)
        _remove(trace)


def _add_member(archive: zipfile.ZipFile, path: Path, name: str, content: Member) -> None:
    if not callable(content):
        archive.writestr(name, json.dumps(content))
        return
    partial = unfinished(path, name)
    try:
        content(partial)
        _add_file(archive, partial, name)
    finally:
        _remove(partial)


def replace_manifest(path: Path, changes: dict[str, Any]) -> None:
    """Change keys in the manifest of a capture, all or nothing.

    Args:
        path: a capture that `write_capture` wrote.
        changes: keys to set.

    Raises:
        OSError: the file cannot be written; it is unchanged.
    """
    partial = unfinished(path)
    try:
        shutil.copyfile(path, partial)
        with zipfile.ZipFile(partial, "a", zipfile.ZIP_DEFLATED, compresslevel=_QUICK) as archive:
            _change_last_member(archive, changes)
        partial.replace(path)
    finally:
        _remove(partial)


def _change_last_member(archive: zipfile.ZipFile, changes: dict[str, Any]) -> None:
    last = archive.infolist()[-1]
    if last.filename != _MANIFEST:
        raise OSError(f"{archive.filename} was not written by this version")
    manifest = json.loads(archive.read(last)) | changes
    archive.filelist.remove(last)
    del archive.NameToInfo[_MANIFEST]
    archive.start_dir = last.header_offset
    archive.writestr(_MANIFEST, json.dumps(manifest, indent=1))


def _remove(temporary: Path) -> None:
    """An error on the way here must not be hidden by one of the cleanup."""
    for left in (temporary, temporary.with_name(f"{temporary.name}.tmp")):  # PyTorch writes there
        with suppress(OSError):
            left.unlink(missing_ok=True)


def _move_to(path: Path) -> Callable[[Path], object]:
    return lambda partial: partial.replace(path)


def _add_file(archive: zipfile.ZipFile, source: Path, name: str) -> None:
    with source.open("rb") as content, archive.open(name, "w", force_zip64=True) as member:
        shutil.copyfileobj(content, member, _CHUNK_BYTES)


def check_target(path: Path) -> None:
    """Refuse a target that cannot or must not be written, before the run starts.

    Raises:
        CaptureError: the folder is missing or read-only, or the file is not an earlier capture.
    """
    # A device such as /dev/zero has no end to look at.
    if path.exists() and not (path.is_file() and is_capture(path)):
        raise CaptureError(
            f"cannot write the capture to {path}: the file exists and is not a capture; "
            "choose another file with -o"
        )
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not _is_writable(folder):
        raise CaptureError(
            f"cannot write the capture to {path}: the folder {folder} is not writable; "
            "choose another file with -o"
        )


def _is_writable(folder: Path) -> bool:
    """Tried, because permissions alone do not decide (root, quotas, network file systems)."""
    try:
        with TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def has_recording(path: Path) -> bool:
    """Whether `path` is a capture that holds a trace or contexts, and not only how a run ended."""
    try:
        with zipfile.ZipFile(path) as archive:
            return bool(_RECORDINGS & set(archive.namelist()))
    except (OSError, zipfile.BadZipFile):
        return False


def is_capture(path: Path) -> bool:
    """Whether `path` is a file that `write_capture` wrote."""
    try:
        with zipfile.ZipFile(path) as archive:
            return bool(json.loads(archive.read(_MANIFEST))["format"] == FORMAT)
    except (OSError, zipfile.BadZipFile, KeyError, ValueError, TypeError):
        return False
