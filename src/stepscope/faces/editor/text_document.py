"""Text documents with the lines and columns of the LSP specification.

A line ends with LF, CRLF or CR and with nothing else: form feeds, vertical tabs, `U+0085` and
`U+2028` are ordinary characters. A column counts code units of the encoding that client and server
agreed on, by default UTF-16.
"""

from collections.abc import Sequence
from copy import copy
from itertools import pairwise
from typing import Any

from lsprotocol import types as lsp
from pygls.workspace import PositionCodec, TextDocument, Workspace

from stepscope.models.batch_size.source_facts import LINE_END
from stepscope.models.batch_size.source_files import read_source

BYTE_ORDER_MARK = "\ufeff"
_UNITS = {"utf-8": ("utf-8", 1), "utf-16": ("utf-16-le", 2), "utf-32": ("utf-32-le", 4)}


def split_lines(text: str) -> list[str]:
    """The lines of a text without their ends; after a final line end there is an empty line."""
    return LINE_END.split(text)


def _lines_with_ends(text: str) -> list[str]:
    starts = [0, *(match.end() for match in LINE_END.finditer(text)), len(text)]
    return [text[start:end] for start, end in pairwise(starts)]


class Document(TextDocument):
    """A text document of the client, or, where the client has not opened it, the file on disk."""

    _changing: list[str] | None = None  # the lines with their ends, until `source` joins them

    @property
    def source(self) -> str:
        """The client's text, or the file's without byte order mark in the encoding it declares; raises
        BatchError if the client has not opened the file and it cannot be read."""
        if self._changing is not None:
            self._source, self._changing = "".join(self._changing), None
        if self._source is None:
            return read_source(self.path).text
        return self._source

    def snapshot(self) -> "Document":
        """The document as it is now, which later changes do not touch."""
        text, same = self.source, copy(self)
        same._source = text
        return same

    @property
    def lines(self) -> Sequence[str]:
        return _lines_with_ends(self.source)

    def offset_at_position(self, client_position: lsp.Position) -> int:
        """The character at a position; a position past the end of its line is the line's end."""
        lines = self.lines
        line, units = self._place(lines, client_position)
        before = self._decode(self._encode(lines[line])[: units * self._unit])
        return sum(map(len, lines[:line])) + len(before)

    def client_position_at_offset(self, offset: int) -> lsp.Position:
        *before, last = _lines_with_ends(self.source[:offset])
        return lsp.Position(len(before), self._units(last))

    def _apply_full_change(self, change: lsp.TextDocumentContentChangeEvent) -> None:
        self._source, self._changing = change.text, None

    def _apply_incremental_change(self, change: lsp.TextDocumentContentChangePartial) -> None:
        """Replace code units, which may be half of a character; costs what the changed lines do."""
        lines = self._changing = self._changing or [*self.lines]
        spans = change.range.start, change.range.end
        (first, begin), (last, end) = sorted(self._place(lines, position) for position in spans)
        texts = lines[first], change.text, lines[last]
        if all(map(str.isascii, texts)):
            joined = texts[0][:begin] + texts[1] + texts[2][end:]
        else:
            head, new, tail = map(self._encode, texts)
            joined = self._decode(head[: begin * self._unit] + new + tail[end * self._unit :])
        if joined[:1] == "\n" and first and lines[first - 1].endswith("\r"):  # one line end from now on
            first -= 1
            joined = lines[first] + joined
        changed = [joined]
        if first < last or not {"\r", "\n"}.isdisjoint(change.text):
            changed = _lines_with_ends(joined)[: -1 if last + 1 < len(lines) else None]
        lines[first : last + 1] = changed

    def _place(self, lines: Sequence[str], position: lsp.Position) -> tuple[int, int]:
        """A line, and the code units before a position in it; at most those of its text."""
        if position.line >= len(lines):
            return len(lines) - 1, self._units(lines[-1])
        text = lines[position.line].rstrip("\r\n")
        return position.line, min(position.character, self._units(text))

    def _units(self, text: str) -> int:
        return len(text) if text.isascii() else len(self._encode(text)) // self._unit

    @property
    def _unit(self) -> int:
        return self._codec[1]

    @property
    def _codec(self) -> tuple[str, int]:
        encoding = self.position_codec.encoding
        return _UNITS[str(getattr(encoding, "value", encoding) or "utf-16")]

    def _encode(self, text: str) -> bytes:
        return text.encode(self._codec[0], "surrogatepass")

    def _decode(self, text: bytes) -> str:
        """Characters; half of one, which a client may leave while it deletes, stays a half."""
        try:
            return text.decode(self._codec[0], "surrogatepass")
        except UnicodeDecodeError:  # a position within a character: no client means that
            return text.decode(self._codec[0], "replace")


class DocumentStore(Workspace):
    """The client's documents, with the specification's lines."""

    def _create_text_document(self, *about: Any, **further: Any) -> Document:
        further |= {"sync_kind": self._sync_kind, "position_codec": PositionCodec(self.position_encoding)}
        return Document(*about, **further)
