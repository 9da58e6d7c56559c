"""A source file as text, and back to the very bytes that an edit left alone."""

from __future__ import annotations

import codecs
import io
import tokenize
from dataclasses import dataclass
from pathlib import Path

from stepscope.errors import BatchError


@dataclass(frozen=True)
class Source:
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


def read_source(path: str | Path) -> Source:
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
        raise BatchError(f"expected a file to read at {path}, found none: {reason}") from error
    except (SyntaxError, UnicodeError, LookupError) as error:
        raise BatchError(
            f"expected text in the encoding that {path} declares, found something else: {error}; "
            "save the file as UTF-8",
            str(path),
        ) from error


def decode_source(path: str, content: bytes) -> Source:
    """The same for bytes at hand."""
    mark = codecs.BOM_UTF8 if content.startswith(codecs.BOM_UTF8) else b""
    encoding = _encoding(path, content)
    return Source(path, content[len(mark) :].decode(encoding), encoding, mark)


def _encoding(path: str, content: bytes) -> str:
    if not path.endswith((".py", ".pyi")):
        return "utf-8"
    declared, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    return "utf-8" if declared == "utf-8-sig" else declared
