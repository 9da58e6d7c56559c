"""A source file as text, and back to the very bytes that an edit left alone."""

from __future__ import annotations

import codecs
import io
import tokenize
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stepscope.errors import BatchError

ReadText = Callable[[str], str]
"""Returns the text of a file by its path; raises `BatchError`."""


@dataclass(frozen=True)
class EditableText:
    """A file's text, its ends of line as they are, and what is needed to write it again.

    Attributes:
        path: the file.
        text: its characters, without a byte order mark.
        encoding: as the file declares it.
        mark: the byte order mark, or nothing.
    """

    path: str
    text: str
    encoding: str = "utf-8"
    mark: bytes = b""

    def encode(self, text: str) -> bytes:
        """`text` as the file's bytes."""
        return self.mark + text.encode(self.encoding)


def read_source(path: str | Path) -> EditableText:
    """Read a Python, YAML, JSON or TOML file.

    Args:
        path: the file.

    Returns:
        Its text; `source.encode(source.text)` gives the file's bytes.

    Raises:
        BatchError: there is no such file, or it is not text in the encoding it declares.
    """
    try:
        content = Path(path).read_bytes()
        return decode_source(str(path), content)
    except OSError as error:
        reason = error.strerror or str(error)
        raise BatchError(f"cannot read {path}: {reason}") from error
    except (SyntaxError, UnicodeError, LookupError) as error:
        raise BatchError(
            f"cannot decode {path}: {error}; save the file as UTF-8",
            str(path),
        ) from error


def read_text(path: str) -> str:
    """The text of a file on disk, without byte order mark; raises `BatchError`."""
    return read_source(path).text


def decode_source(path: str, content: bytes) -> EditableText:
    """The same for bytes at hand."""
    mark = codecs.BOM_UTF8 if content.startswith(codecs.BOM_UTF8) else b""
    encoding = declared_encoding(path, content)
    return EditableText(path, content[len(mark) :].decode(encoding), encoding, mark)


def declared_encoding(path: str, content: bytes) -> str:
    """The encoding that a file declares; raises `SyntaxError` if there is none of that name."""
    if not path.endswith((".py", ".pyi")):
        return "utf-8"
    declared, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    return "utf-8" if declared == "utf-8-sig" else declared
