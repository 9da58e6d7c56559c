"""JSON text of trace events to records: fast where it is well formed, patient where it is not.

A trace is a long array of small objects. `EventReader` takes its text in chunks. Each chunk is cut
at a place that looks like the border of two events and decoded at once by msgspec; that it decodes
proves the cut right, since half an event is not JSON. Where it does not, `PatientReader` reads that
chunk event by event and finds the array's end.

Source: Trace Event Format, "JSON Object Format" and "JSON Array Format"
(https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from stepscope.errors import IngestError
from stepscope.ingest.header import find_array, load, no_array, trailer
from stepscope.ingest.patient import MAX_PENDING_BYTES, PatientReader, excerpt
from stepscope.ingest.records import Coercion, Record
from stepscope.ingest.stream import Warn

_BORDER = re.compile(rb"\}\s*,\s*\{")
_CLOSE = re.compile(rb"\}\s*,?\s*\]")
_WINDOW = 1 << 16
_TRIES = 4
_BOM = b"\xef\xbb\xbf"
_FAST = msgspec.json.Decoder(list[Record])


class EventReader:
    """Reads the events of one JSON trace from chunks of its text.

    Attributes:
        properties: what stands at the top level beside the events, complete after iteration.

    Raises:
        IngestError: while iterating, if the text is no trace at all.
    """

    def __init__(self, chunks: Iterator[bytes], warn: Warn) -> None:
        self._chunks = chunks
        self._warn = warn
        self._offset = 0
        self._is_object = False
        self.properties: dict[str, Any] = {}

    def __iter__(self) -> Iterator[list[Record]]:
        pending, closed = self._open_array(), False
        while not closed and (more := self._more(pending)):
            records, pending, closed = self._take(pending + more, last=False)
            yield records
            if len(pending) > MAX_PENDING_BYTES and not closed:
                raise IngestError(
                    f"expected an event to end within {MAX_PENDING_BYTES >> 20} MiB; none does "
                    f"after byte {self._offset}: this is not a list of trace events"
                )
        if not closed:
            records, pending, closed = self._take(pending, last=True)
            yield records
        yield from self._finish(pending, closed)

    def _more(self, pending: bytes) -> bytes:
        """At least as much text again as waits, so that none is looked at more than a few times."""
        fresh: list[bytes] = []
        size = 0
        for chunk in self._chunks:
            fresh.append(chunk)
            size += len(chunk)
            if size >= len(pending):
                break
        return b"".join(fresh)

    def _open_array(self) -> bytes:
        """Read up to the first event; what stands before it goes to `properties`."""
        text = body = b""
        while (more := self._more(text)) and len(text) <= MAX_PENDING_BYTES:
            text += more
            body = text.removeprefix(_BOM).lstrip()
            self._is_object = body[:1] == b"{"
            if body[:1] == b"[":
                self._offset = len(text) - len(body) + 1
                return body[1:]
            if body and not self._is_object and not _BOM.startswith(text):
                raise IngestError(f"expected a JSON object or array, found {excerpt(body)}")
            if self._is_object and (found := find_array(body)):
                header, start = found
                self.properties.update(header)
                self._offset = len(text) - len(body) + start
                return body[start:]
        if not body:
            raise IngestError("expected a trace, found an empty file")
        raise no_array(body)

    def _take(self, text: bytes, last: bool) -> tuple[list[Record], bytes, bool]:
        """Records of the complete events in `text`, the rest of it, and whether the array ended."""
        for cut, rest, closed in self._ends(text) if last else _borders(text):
            records = _decode(text[:cut])
            if records is not None:
                self._offset += rest
                return records, text[rest:], closed
        patient, rest_of_text, closed = PatientReader(text, self._offset, last, self._warn).read()
        self._offset += len(text) - len(rest_of_text)
        return patient, rest_of_text, closed

    def _ends(self, text: bytes) -> Iterator[tuple[int, int, bool]]:
        """Likely ends of the array, as (end of the last event, where the rest begins, True)."""
        for match in _last_matches(_CLOSE, text):
            rest = text[match.end() :]
            if load(b'{"":0' + rest) is not None if self._is_object else not rest.strip():
                yield match.start() + 1, match.end(), True
        yield _content_end(text), len(text), False

    def _finish(self, rest: bytes, closed: bool) -> Iterator[list[Record]]:
        """Read what stands after the array's end."""
        if not closed:
            if self._is_object:
                self._warn("truncated_file", "the file ends before its array of events does")
            return
        while (more := self._more(rest)) and len(rest) <= MAX_PENDING_BYTES:
            rest += more
        if not self._is_object:
            if rest.strip():
                self._warn("trailing_text", f"text after the array of events: {excerpt(rest)}")
            return
        found = trailer(rest)
        if found is None:
            self._warn("malformed_trailer", f"text after the events is not JSON: {excerpt(rest)}")
            return
        properties, further = found
        self.properties.update(properties)
        yield from self._further(further)

    def _further(self, values: list[Any]) -> Iterator[list[Record]]:
        """The events of a repeated `traceEvents`: JSON allows it, so they count too."""
        coercion = Coercion(self._warn)
        events = [value for value in values if isinstance(value, dict)]
        if len(events) < len(values):
            self._warn("not_an_event", "expected events (objects) in a repeated `traceEvents`")
        if events:
            yield [coercion.record(event) for event in events]


def _decode(text: bytes) -> list[Record] | None:
    """Records of well-formed text without brackets, None where it is not."""
    try:
        if not text.isascii():
            text.decode()  # msgspec does not look into what it leaves as text
        return _FAST.decode(b"[%b]" % text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _borders(text: bytes) -> Iterator[tuple[int, int, bool]]:
    """Likely last borders between two events, as (end of one, start of the next, False)."""
    for match in _last_matches(_BORDER, text):
        yield match.start() + 1, match.end() - 1, False


def _content_end(text: bytes) -> int:
    """Where the text ends when trailing blanks and one comma are left out."""
    return len(text.rstrip().removesuffix(b",").rstrip())


def _last_matches(pattern: re.Pattern[bytes], text: bytes) -> list[re.Match[bytes]]:
    for window in (_WINDOW >> 4, _WINDOW):
        matches = list(pattern.finditer(text, max(0, len(text) - window)))
        if len(matches) >= _TRIES:
            break
    return matches[: -_TRIES - 1 : -1]
