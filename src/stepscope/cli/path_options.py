"""Types of paths on the command line: files to read and files to write."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click


class NamedPath(click.Path):
    """The type of a path that is not empty: an empty path would mean the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path as given."""
        if not os.fspath(value):
            self.fail("the path is empty", param, ctx)
        return super().convert(value, param, ctx)


class OutputFile(NamedPath):
    """The type of a file to write: its folder exists and is writable."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path as given."""
        path = str(super().convert(value, param, ctx))
        folder = Path(path).absolute().parent
        if not folder.is_dir():
            self.fail(f"cannot write {path}: the folder {folder} does not exist", param, ctx)
        if not os.access(folder, os.W_OK):
            self.fail(f"cannot write {path}: no permission to write in {folder}", param, ctx)
        return path
