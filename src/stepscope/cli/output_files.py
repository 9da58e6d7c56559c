"""Files that a command writes: whole or never."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from tempfile import mkstemp

from stepscope.errors import ServeError


def write_text(out: Path, text: str) -> None:
    """Write all of it or nothing; to the end of a link, and straight to what is no file (a pipe).

    Raises:
        ServeError: if it cannot be written.
    """
    out = out.resolve()
    try:
        if out.exists() and not out.is_file():
            out.write_text(text, "utf-8")
            return
        handle, name = mkstemp(dir=out.parent, prefix=f".{out.name}.")
    except OSError as error:
        raise ServeError(f"{out}: cannot be written: {error.strerror}") from error
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).chmod(0o666 & ~_umask())  # what it would have had without the detour
        Path(name).replace(out)
    except OSError as error:
        with suppress(OSError):
            Path(name).unlink()
        raise ServeError(f"{out}: cannot be written: {error.strerror}") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
