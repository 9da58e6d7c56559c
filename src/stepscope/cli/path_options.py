"""Types of paths on the command line: files to read and files to write."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import click

_RECORDING = re.compile(r"\.(stepscope|json|pb|sqlite|nsys-rep|pickle)(\.gz|\.zst)?$")


class NamedPath(click.Path):
    """The type of a path that is not empty: an empty path would mean the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path as given."""
        if not os.fspath(value):
            self.fail("the path is empty", param, ctx)
        return super().convert(value, param, ctx)


class ScriptPath(NamedPath):
    """The type of a script to run: a recording that was named by mistake is refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path as given."""
        path = super().convert(value, param, ctx)
        if _RECORDING.search(path):
            hint = f"is a recording, not a script; to open it: stepscope report {path}"
            self.fail(f"{path} {hint}", param, ctx)
        return path


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
