"""The capture file on disk: docs/capture_format.md."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from stepscope.errors import CaptureError

FORMAT = "stepscope capture"
VERSION = 1
_QUICK = 1
_CHUNK_BYTES = 1 << 20


def write_capture(
    path: Path,
    manifest: dict[str, Any],
    modules: dict[str, Any],
    export: Callable[[Path], object] | None,
    contexts: bytes | None = None,
    member: str = "trace.json",
) -> None:
    """Write a capture file, all or nothing.

    Args:
        path: the file to write; an earlier capture there is replaced.
        manifest: the content of manifest.json.
        modules: the content of modules.json.
        export: writes the profiler's own file to the path it is given; None where nothing was
            recorded.
        contexts: the content of contexts.json, where contexts were collected.
        member: what the profiler's file is called in the archive.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    trace = path.with_name(f".{path.name}.{os.getpid()}.{member}")
    try:
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED, compresslevel=_QUICK) as archive:
            archive.writestr("manifest.json", json.dumps(manifest, indent=1))
            archive.writestr("modules.json", json.dumps(modules))
            if export:
                export(trace)
                _add_file(archive, trace, member)
            if contexts is not None:
                archive.writestr("contexts.json", contexts)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
        trace.unlink(missing_ok=True)


def _add_file(archive: zipfile.ZipFile, source: Path, name: str) -> None:
    with source.open("rb") as content, archive.open(name, "w", force_zip64=True) as member:
        shutil.copyfileobj(content, member, _CHUNK_BYTES)


def check_target(path: Path) -> None:
    """Refuse, before the run starts, a target that cannot or must not be written.

    Raises:
        CaptureError: the folder is missing or read-only, or the file is not an earlier capture.
    """
    if path.exists() and not is_capture(path):
        raise CaptureError(
            f"expected a new file or an earlier capture to write to, found something else at "
            f"{path}; choose another file with -o"
        )
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not _takes_files(folder):
        raise CaptureError(
            f"expected a folder that can be written to for {path}, but {folder} cannot be; "
            f"choose another file with -o"
        )


def _takes_files(folder: Path) -> bool:
    """By trying: what the permissions say is not all (root, quotas, network file systems)."""
    try:
        with TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def is_capture(path: Path) -> bool:
    """Whether `path` is a file that `write_capture` wrote."""
    try:
        with zipfile.ZipFile(path) as archive:
            return bool(json.loads(archive.read("manifest.json"))["format"] == FORMAT)
    except (OSError, zipfile.BadZipFile, KeyError, ValueError, TypeError):
        return False
