"""Where a command's text goes."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

FILE_WIDTH = 120
# One character for one, so that tables keep their columns.
_PLAIN = dict(zip("…›◀↩▶▼·µ×–—→←━─│•█▉▊▋▌▍▎▏", "~><^>v.ux--><--|*#####:::", strict=True))


def terminal() -> Console:
    """A console as wide as the terminal; in a pipe or a file 120 columns, or `$COLUMNS`."""
    from rich.console import Console

    wide = sys.stdout.isatty() or "COLUMNS" in os.environ
    file: Any = sys.stdout if _takes_unicode(sys.stdout) else _PlainFile(sys.stdout)
    return Console(file=file) if wide else Console(file=file, width=FILE_WIDTH)


def plain(text: str, encoding: str) -> str:
    """`text` in characters that an encoding has, each symbol replaced by a similar one.

    Example:
        >>> plain("k.py:4 › aten::mm ◀  2.1 µs  ██▍", "ascii")
        'k.py:4 > aten::mm <  2.1 us  ##:'
    """
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return "".join(_plain_character(one, encoding) for one in text)
    return text


def _plain_character(character: str, encoding: str) -> str:
    try:
        character.encode(encoding)
    except UnicodeEncodeError:
        return _PLAIN.get(character, "?")
    return character


def _takes_unicode(file: TextIO) -> bool:
    return (file.encoding or "utf-8").lower().replace("-", "").startswith("utf")


class _PlainFile:
    """A file whose encoding lacks some characters that are written to it."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        return self._file.write(plain(text, self._file.encoding))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
