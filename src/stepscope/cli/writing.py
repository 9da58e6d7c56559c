"""Files that a command writes: refused at once where they cannot be, written whole or never."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from tempfile import mkstemp
from typing import Any

import click

from stepscope.errors import ServeError


class OutputFile(click.Path):
    """The type of an option that names a file to write: its folder is there and can be written."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path as given."""
        path = str(super().convert(value, param, ctx))
        folder = Path(path).absolute().parent
        if not folder.is_dir():
            self.fail(f"expected a folder to write {path} to, found none at {folder}", param, ctx)
        if not os.access(folder, os.W_OK):
            self.fail(f"{path}: the folder {folder} cannot be written to", param, ctx)
        return path


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
