"""The line of a user's file that a traceback, or the dump of a hung process, speaks of."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)', re.MULTILINE)
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*$", re.MULTILINE)


class Frame(NamedTuple):
    """A place in a file; `line` counts from 1."""

    file: str
    line: int


def innermost(text: str, folder: Path, latest_first: bool = False) -> Frame | None:
    """The innermost frame that lies in the user's own files.

    Args:
        text: as Python prints it; of `faulthandler`'s dump the first thread with such a frame.
        folder: what lies below it is the user's, installed packages aside.
        latest_first: whether the innermost frame stands first, as in a dump.

    Returns:
        The frame, or None.
    """
    stacks = _THREAD.split(text) if latest_first else [text]
    for stack in stacks:
        own = [frame for frame in _frames(stack) if _is_own(frame.file, folder)]
        if own:
            return own[0] if latest_first else own[-1]
    return None


def _frames(text: str) -> Iterator[Frame]:
    for match in _FRAME.finditer(text):
        yield Frame(match["file"], int(match["line"]))


def _is_own(file: str, folder: Path) -> bool:
    path = Path(file)
    return path.is_relative_to(folder) and not _installed(path.parts)


def _installed(parts: Collection[str]) -> bool:
    return "site-packages" in parts or "dist-packages" in parts
