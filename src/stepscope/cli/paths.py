"""Paths on the command line: to read, and to write, refused at once where they cannot be meant."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click


class NamedPath(click.Path):
    """The type of a path that is not empty: an empty one would be the folder one stands in."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path as given."""
        if not os.fspath(value):
            self.fail("expected a path, found an empty one", param, ctx)
        return super().convert(value, param, ctx)


class OutputFile(NamedPath):
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
