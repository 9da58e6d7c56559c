"""Reports of unforeseen errors: a file with versions, command and traceback, but no data."""

import os
import platform
import shlex
import sys
import tempfile
import traceback
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

from stepscope.version import __version__

ISSUES = "https://github.com/stepscope/stepscope/issues"
_PACKAGES = ("numpy", "pyarrow", "duckdb", "msgspec", "click", "torch", "jax")
_LONGEST_MESSAGE = 200  # characters


def crash_message(error: BaseException) -> str:
    """Write a report of an unforeseen error; returns one line that says where it is."""
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_MESSAGE]
    what = f"unexpected error in stepscope ({reason})"
    try:
        path = _write("\n".join(_lines(error)))
    except OSError as failure:
        return f"{what}; no crash report ({failure.strerror}); please report it: {ISSUES}"
    return f"{what}; crash report: {path} (no trace data); please send it: {ISSUES}"


def _write(text: str) -> Path:
    handle, name = tempfile.mkstemp(prefix="stepscope-crash-", suffix=".txt")
    with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
        file.write(text)
    return Path(name)


def _lines(error: BaseException) -> Iterator[str]:
    """Versions, command, and the frames of each error of the chain; messages may hold data."""
    yield f"stepscope {__version__}, Python {platform.python_version()}, {platform.platform()}"
    versions = {each.name: each.version for each in distributions()}
    yield ", ".join(f"{name} {versions.get(name, 'absent')}" for name in _PACKAGES)
    yield f"command: stepscope {shlex.join(sys.argv[1:])}"
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield f"\n{type(current).__name__}, raised at:"
        yield from (line.rstrip() for line in traceback.format_tb(current.__traceback__))
        current = current.__cause__ or current.__context__
