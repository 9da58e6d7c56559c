"""JSON text of trace events to records: fast where it is well formed, patient where it is not.

A trace is a long array of small objects. `EventReader` takes its text in chunks. Each chunk is cut
at a place that looks like the border of two events and decoded at once by msgspec; that it decodes
proves the cut right, since half an event is not JSON. Where it does not, the standard library reads
event by event, accepts what JSON forbids but recorders write (NaN, raw control characters), sets
aside what nothing can read, with a warning, and finds the array's end.

Source: Trace Event Format, "JSON Object Format" and "JSON Array Format"
(https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Raw, Struct

from stepscope.errors import IngestError
from stepscope.ingest.stream import Warn

MAX_PENDING_BYTES = 256 << 20
_BORDER = re.compile(rb"\}\s*,\s*\{")
_BORDER_TEXT = re.compile(r"\}\s*,\s*(?=\{)")
_CLOSE = re.compile(rb"\}\s*,?\s*\]")
_ARRAY = re.compile(rb'(?<!\\)"traceEvents"\s*:\s*\[')
_SKIP = re.compile(r"[\s,]*")
_WINDOW = 1 << 16
_TAIL = 16  # a number or a literal that the end of the text cuts off is shorter
_LONGEST_TAIL = 1 << 20
_PATIENT = json.JSONDecoder(strict=False)
_NOTHING = Raw(b"")


class Record(Struct, gc=False):
    """One event as written; `ts` and `args` stay text until a column needs them."""

    ph: str = ""
    name: str = ""
    cat: str = ""
    ts: Raw = _NOTHING
    dur: float | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    id: int | str | None = None
    bp: str = ""
    args: Raw = _NOTHING


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
        self.properties: dict[str, Any] = {}

    def __iter__(self) -> Iterator[list[Record]]:
        pending = self._open_array()
        closed = False
        for chunk in self._chunks:
            records, pending, closed = self._take(pending + chunk, last=False)
            yield records
            if closed:
                break
            if len(pending) > MAX_PENDING_BYTES:
                raise IngestError(
                    f"expected an event to end within {MAX_PENDING_BYTES >> 20} MiB; none does "
                    f"after byte {self._offset}: this is not a list of trace events"
                )
        if not closed:
            records, pending, closed = self._take(pending, last=True)
            yield records
        yield from self._finish(pending, closed)

    def _open_array(self) -> bytes:
        """Read up to the first event; what stands before it goes to `properties`."""
        text = b""
        for chunk in self._chunks:
            text = (text + chunk).removeprefix(b"\xef\xbb\xbf").lstrip() if not text else text + chunk
            self._is_object = text[:1] == b"{"
            if text[:1] == b"[":
                self._offset = 1
                return text[1:]
            if text and not self._is_object:
                raise IngestError(f"expected a JSON object or array, found {_excerpt(text)}")
            if found := self._find_array(text):
                return found
            if len(text) > MAX_PENDING_BYTES:
                break
        if not text.strip():
            raise IngestError("expected a trace, found an empty file")
        return self._no_array(text)

    def _find_array(self, text: bytes) -> bytes | None:
        for match in _ARRAY.finditer(text):
            header = _load(text[: match.start()] + b'"traceEvents":[]}')
            if isinstance(header, dict):
                header.pop("traceEvents")
                self.properties.update(header)
                self._offset = match.end()
                return text[match.end() :]
        return None

    def _no_array(self, text: bytes) -> bytes:
        data = _load(text)
        if not isinstance(data, dict):
            raise IngestError(
                "expected a trace with a top-level array `traceEvents`; found text that is not "
                f"JSON and holds none: {_excerpt(text)}"
            )
        keys = ", ".join(list(data)[:8]) or "nothing"
        hint = (
            "; this is a PyTorch execution trace: give the Kineto trace of the same run"
            if "nodes" in data and "schema" in data
            else ""
        )
        raise IngestError(f"expected a top-level array `traceEvents`; found {keys}{hint}")

    def _take(self, text: bytes, last: bool) -> tuple[list[Record], bytes, bool]:
        """Records of the complete events in `text`, the rest of it, and whether the array ended."""
        for cut, rest, closed in self._ends(text) if last else _borders(text):
            try:
                records = _FAST.decode(b"[" + text[:cut] + b"]")
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            self._offset += rest
            return records, text[rest:], closed
        return self._take_patiently(text, last)

    def _ends(self, text: bytes) -> Iterator[tuple[int, int, bool]]:
        """Likely ends of the array, as (end of the last event, where the rest begins, True)."""
        for match in _last_matches(_CLOSE, text):
            rest = text[match.end() :]
            if _load(b'{"":0' + rest) is not None if self._is_object else not rest.strip():
                yield match.start() + 1, match.end(), True
        yield _content_end(text), len(text), False

    def _take_patiently(self, data: bytes, last: bool) -> tuple[list[Record], bytes, bool]:
        text = data.decode("utf-8", "replace")
        if len(text.encode("utf-8", "surrogatepass")) != len(data):
            self._warn("invalid_utf8", "some text is not UTF-8; its bytes were replaced by �")
        records: list[Record] = []
        position, closed = _skip(text, 0), False
        while position < len(text):
            if text[position] == "]":
                position, closed = position + 1, True
                break
            try:
                value, end = _PATIENT.raw_decode(text, position)
            except (ValueError, RecursionError) as error:
                border = _BORDER_TEXT.search(text, position)
                if border is None or not last and _ran_out(error, text, position):
                    break
                self._reject(text, position)
                position = border.end()
                continue
            records += self._coerce(value)
            position = _skip(text, end)
        rest = text[position:].encode("utf-8", "surrogatepass")
        self._offset += len(data) - len(rest)
        if last and not closed and rest.strip():
            self._warn("truncated_event", f"the file ends inside an event, at {_excerpt(rest)}")
            rest = b""
        return records, rest, closed

    def _reject(self, text: str, position: int) -> None:
        excerpt = _excerpt(text[position : position + 200].encode("utf-8", "replace"))
        place = self._offset + len(text[:position].encode("utf-8", "surrogatepass"))
        self._warn("malformed_event", f"an event is not JSON, first near byte {place}: {excerpt}")

    def _coerce(self, value: Any) -> list[Record]:
        if not isinstance(value, dict):
            self._warn("not_an_event", f"expected an event (an object), found {value!r:.60}")
            return []
        return [
            Record(
                ph=_text(value.get("ph")),
                name=_text(value.get("name")),
                cat=_text(value.get("cat")),
                ts=_number_text(value.get("ts")),
                dur=_float(value.get("dur")),
                pid=_identity(value.get("pid")),
                tid=_identity(value.get("tid")),
                id=_identity(value.get("id")),
                bp=_text(value.get("bp")),
                args=_arguments_text(value.get("args")),
            )
        ]

    def _finish(self, rest: bytes, closed: bool) -> Iterator[list[Record]]:
        """Read what stands after the array's end."""
        if not closed:
            if self._is_object:
                self._warn("truncated_file", "the file ends before its array of events does")
            return
        for chunk in self._chunks:
            rest += chunk
            if len(rest) > MAX_PENDING_BYTES:
                break
        if not self._is_object:
            if rest.strip():
                self._warn("trailing_text", f"text after the array of events: {_excerpt(rest)}")
            return
        data = _load(b'{"":0' + rest)
        if not isinstance(data, dict):
            self._warn("malformed_trailer", f"text after the events is not JSON: {_excerpt(rest)}")
            return
        data.pop("", None)
        more = data.pop("traceEvents", [])  # a repeated key: JSON allows it, so nothing is lost
        self.properties.update(data)
        if isinstance(more, list):
            yield [record for value in more for record in self._coerce(value)]


def _borders(text: bytes) -> Iterator[tuple[int, int, bool]]:
    """Likely last borders between two events, as (end of one, start of the next, False)."""
    for match in _last_matches(_BORDER, text):
        yield match.start() + 1, match.end() - 1, False


def _content_end(text: bytes) -> int:
    """Where the text ends when trailing blanks and one comma are left out."""
    return len(text.rstrip().removesuffix(b",").rstrip())


def _last_matches(pattern: re.Pattern[bytes], text: bytes) -> list[re.Match[bytes]]:
    return list(pattern.finditer(text, max(0, len(text) - _WINDOW)))[:-5:-1]


def _ran_out(error: Exception, text: str, position: int) -> bool:
    """Whether reading failed for want of text, as the last event of a chunk does."""
    return (
        isinstance(error, json.JSONDecodeError)
        and (error.pos >= len(text) - _TAIL or error.msg.startswith("Unterminated"))
        and len(text) - position < _LONGEST_TAIL
    )


def _skip(text: str, position: int) -> int:
    match = _SKIP.match(text, position)
    return match.end() if match else position


def _load(text: bytes) -> Any:
    """Parsed JSON as recorders write it, or None where it is not even that."""
    try:
        return json.loads(text.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        return None


def _excerpt(text: bytes) -> str:
    shown = text[:60].decode("utf-8", "replace")
    return repr(shown) + ("…" if len(text) > 60 else "")


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else "" if value is None else json.dumps(value)
    return text.encode("utf-8", "replace").decode()  # a lone surrogate cannot be stored


def _identity(value: Any) -> int | str | None:
    if isinstance(value, int) and abs(value) < 2**63:
        return int(value)
    return None if value is None else _text(value)


def _float(value: Any) -> float | None:
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _number_text(value: Any) -> Raw:
    return _NOTHING if value is None else Raw(str(value).encode("utf-8", "replace"))


def _arguments_text(value: Any) -> Raw:
    if value is None:
        return _NOTHING
    return Raw(json.dumps(value).encode("utf-8", "replace"))
