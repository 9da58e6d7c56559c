"""Text documents with the lines and columns of the LSP specification.

A line ends with LF, CRLF or CR and with nothing else: form feeds, vertical tabs, `U+0085` and
`U+2028` are ordinary characters. A column counts code units of the encoding that client and server
agreed on, by default UTF-16.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
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


class Document(TextDocument):
    """A text document of the client, or, where the client has not opened it, the file on disk."""

    @property
    def source(self) -> str:
        """The client's text, or the file's without byte order mark in the encoding it declares.

        Raises:
            BatchError: the client has not opened the file and it cannot be read.
        """
        if self._source is None:
            return read_source(self.path).text
        return self._source

    @property
    def lines(self) -> Sequence[str]:
        spans = pairwise([*self._line_starts(), len(self.source)])
        return tuple(self.source[start:end] for start, end in spans)

    def offset_at_position(self, client_position: lsp.Position) -> int:
        """The character at a position; a position past the end of its line is the line's end."""
        start, end = self._line_span(client_position.line)
        line = self.source[start:end]
        return start + len(self._decode(self._encode(line)[: self._bytes(client_position)]))

    def client_position_at_offset(self, offset: int) -> lsp.Position:
        starts = self._line_starts()
        line = bisect_right(starts, offset) - 1
        before = self.source[starts[line] : offset]
        return lsp.Position(line, len(self._encode(before)) // self._unit)

    def _apply_incremental_change(self, change: lsp.TextDocumentContentChangePartial) -> None:
        """Replace code units, which may be half of a character."""
        data = self._encode(self.source)
        first, last = self._place(change.range.start), self._place(change.range.end)
        self._source = self._decode(data[:first] + self._encode(change.text) + data[last:])

    def _place(self, position: lsp.Position) -> int:
        """Where a position is in the encoded text."""
        start, end = self._line_span(position.line)
        line = self._encode(self.source[start:end])
        return len(self._encode(self.source[:start])) + min(self._bytes(position), len(line))

    def _line_starts(self) -> list[int]:
        return [0, *(match.end() for match in LINE_END.finditer(self.source))]

    def _line_span(self, line: int) -> tuple[int, int]:
        """Start and end of a line without its line end; past the last line, the text's end."""
        starts = self._line_starts()
        if line >= len(starts):
            return len(self.source), len(self.source)
        end = LINE_END.search(self.source, starts[line])
        return starts[line], end.start() if end else len(self.source)

    @property
    def _unit(self) -> int:
        return self._codec[1]

    @property
    def _codec(self) -> tuple[str, int]:
        encoding = self.position_codec.encoding
        return _UNITS[str(getattr(encoding, "value", encoding) or "utf-16")]

    def _bytes(self, position: lsp.Position) -> int:
        return position.character * self._unit

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
