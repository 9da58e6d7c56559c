"""Files as they would read with another batch size, without writing any of them.

Whoever opens such a file for reading, be it Python's import or `yaml.safe_load(open(...))`, gets
the edited text from memory.
"""

from __future__ import annotations

import _io
import builtins
import io
import os
import sys
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any


def serve_edited(files: Mapping[str, bytes]) -> None:
    """From now on these files have this content, in this process.

    Args:
        files: content by absolute path.
    """
    if not files:
        return
    content = {os.path.realpath(path): data for path, data in files.items()}
    sys.dont_write_bytecode = True
    _serve_open(content)
    _serve_code(content)


def _serve_open(content: Mapping[str, bytes]) -> None:
    original: Any = io.open

    def open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        data = _edited(content, file)
        if data is None or set(mode) & set("wax+"):
            return original(file, mode, *args, **kwargs)
        stream = io.BytesIO(data)
        stream.name = os.fspath(file)
        return stream if "b" in mode else _as_text(stream, *args, **kwargs)

    builtins.open = io.open = open


def _as_text(
    stream: io.BytesIO,
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    *_: Any,
    **__: Any,
) -> io.TextIOWrapper:
    return io.TextIOWrapper(stream, encoding or "utf-8", errors, newline)


def _serve_code(content: Mapping[str, bytes]) -> None:
    """Imports read through `open_code`; without stats, importlib looks for no cached bytecode."""
    original: Any = _io.open_code
    stats = SourceFileLoader.path_stats

    def open_code(path: Any) -> Any:
        data = _edited(content, path)
        return original(path) if data is None else io.BytesIO(data)

    def path_stats(self: Any, path: str) -> Any:
        if _edited(content, path) is not None:
            raise OSError("edited in memory")
        return stats(self, path)

    _io.open_code = io.open_code = open_code
    SourceFileLoader.path_stats = path_stats  # type: ignore[method-assign]


def _edited(content: Mapping[str, bytes], file: Any) -> bytes | None:
    if not isinstance(file, str | Path):
        return None
    return content.get(os.path.realpath(file))
