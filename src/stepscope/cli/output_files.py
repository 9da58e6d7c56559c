"""Files that a command writes: whole or never."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from stepscope.errors import ServeError
from stepscope.unfinished_files import unfinished


def write_text(out: Path, text: str) -> None:
    """Write all of it or nothing; to the end of a link, and straight to what is no file (a pipe).

    Raises:
        ServeError: if it cannot be written.
    """
    out = Path(os.path.realpath(out))
    try:
        if out.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if out.exists() and not out.is_file():
            out.write_text(text, "utf-8", "backslashreplace")
        else:
            data = text.encode("utf-8", "backslashreplace")  # a file's name is any bytes
            _write_whole(out, data)
    except OSError as error:
        raise ServeError(f"{out}: cannot be written: {error.strerror}") from error


def _write_whole(out: Path, content: bytes) -> None:
    """The file gets its name when it is whole: until then a kill leaves nothing, where possible."""
    name = unfinished(out)
    try:
        if not _write_without_name(out.parent, name, content):
            name.write_bytes(content)
        name.replace(out)
    finally:  # also after Ctrl-C
        with suppress(OSError):
            name.unlink()


def _write_without_name(folder: Path, name: Path, content: bytes) -> bool:
    """Name a file only once it is written; False where the system or the disk has no such files."""
    if not hasattr(os, "O_TMPFILE"):
        return False
    try:
        handle = os.open(folder, os.O_TMPFILE | os.O_WRONLY, 0o666)
    except OSError:
        return False
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        try:
            os.link(f"/proc/self/fd/{handle}", name, follow_symlinks=True)
        except OSError:  # no /proc, or a disk that does not allow it
            return False
    return True
