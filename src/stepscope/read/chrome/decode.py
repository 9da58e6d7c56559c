"""Decodes the JSON text of trace events: fast if it is well formed, tolerant if it is not.

A trace is a long array of small objects. `EventReader` takes its text in chunks. It cuts each chunk
at what looks like the border of two events, and the compiled decoder decodes it at once. If that
succeeds, the cut is right, since half an event is not JSON. If not, `TolerantReader` reads the
chunk event by event and finds the array's end.

The compiled decoder works ahead in threads, on the guess that each first cut is right. Where one is
not, the text after it is taken back and cut again.

Source: Trace Event Format, "JSON Object Format" and "JSON Array Format"
(https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU).
"""

import json
import re
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from stepscope.base.parallel import usable_cores
from stepscope.base.typed_data import decode
from stepscope.errors import IngestError
from stepscope.read.byte_stream import Warn
from stepscope.read.chrome.chunk import Chunk
from stepscope.read.chrome.compiled_decoder import decode_chunk, decode_events
from stepscope.read.chrome.tolerant_json import (
    LEVELS,
    MAX_PENDING_BYTES,
    TOKEN,
    Coercion,
    TolerantReader,
    Written,
    excerpt,
    whole,
)
from stepscope.read.shared import NestingError, parse_json
from stepscope.read.unsupported import foreign_json

_BORDER = re.compile(rb"\}\s*,\s*\{")
_CLOSE = re.compile(rb"\}\s*,?\s*\]")
_LARGEST_BYTES = 16 << 20  # of text around the events: parsed, tiny values take 30 times as much
_WINDOW, _TRIES = 1 << 16, 4  # bytes at the end of a text, and borders in them that are tried
# Triton's Proton writes an object for each stream, one after the other (TraceData.cpp).
_ANOTHER = re.compile(rb'\s*\}\s*\{\s*(?:"displayTimeUnit"\s*:\s*"\w*"\s*,\s*)?"traceEvents"\s*:\s*\[')
_BORDER_BYTES, _PIECE_BYTES = 1 << 8, 1 << 16  # chosen: a border is shorter; text that is read again
_MOST_OBJECTS = 1 << 10  # chosen: more than a device has streams
_BOM = b"\xef\xbb\xbf"
Decode = Callable[[bytes, int], Chunk | None]


class _Ahead(NamedTuple):
    """Text whose decoding has begun."""

    text: bytes
    pieces: Sequence[bytes]  # those read last, with which the text ends
    rest: int  # where the next text starts
    chunk: Future[Chunk | None] | None


class EventReader:
    """Reads the events of one JSON trace from chunks of its text.

    `warn` is called for everything malformed; `decode` decodes the first bytes of a text, or returns
    None. Iterating raises IngestError if the text is no trace at all.
    """

    def __init__(self, chunks: Iterator[bytes], warn: Warn, decode: Decode = decode_chunk) -> None:
        self._chunks = chunks
        self._again: list[bytes] = []  # pieces that were read ahead, the next one last
        self._warn = warn
        self._decode = decode
        self._offset = 0
        self._is_object, self._objects = False, 1
        self.properties: dict[str, Any] = {}  # top-level values but the events, complete after iteration

    def __iter__(self) -> Generator[Chunk]:
        """The events in file order; close the generator to end its threads."""
        pending, goes_on = self._open_array(), True
        while goes_on:
            pending, closed = yield from self._parallel(pending)
            if not closed:
                chunk, pending, closed = self._take(pending, last=True)
                yield chunk
            pending, goes_on = self._next_array(pending) if closed else (pending, False)
        yield from self._finish(pending, closed)

    def _next_array(self, rest: bytes) -> tuple[bytes, bool]:
        """The text after an array, and whether it is that of another one, which is put back."""
        while len(rest) < _BORDER_BYTES and (more := self._more(rest)):
            rest += b"".join(more)
        found = _ANOTHER.match(rest) if self._is_object and self._objects < _MOST_OBJECTS else None
        if found is None:
            return rest, False
        self._objects += 1
        self._offset += found.end()
        starts = range(found.end(), len(rest), _PIECE_BYTES)
        self._again += [rest[start : start + _PIECE_BYTES] for start in reversed(starts)]
        return b"", True

    def _parallel(self, pending: bytes) -> Generator[Chunk, None, tuple[bytes, bool]]:
        """Take the text chunk by chunk, with the text after each first cut decoded meanwhile.

        Returns the rest of the text, and whether the array ended.
        """
        threads = usable_cores()
        ahead: deque[_Ahead] = deque()
        with ThreadPoolExecutor(threads, "stepscope-decode") as pool:
            while True:
                while len(ahead) <= threads and (not ahead or ahead[-1].chunk):
                    if not (more := self._more(pending)):
                        break
                    text = pending + b"".join(more)
                    cut, rest, _ = next(_borders(text), (0, len(text), False))
                    chunk = pool.submit(self._decode, text, cut) if cut else None
                    ahead.append(_Ahead(text, more, rest, chunk))
                    pending = text[rest:]
                if not ahead:
                    return pending, False
                first = ahead.popleft()
                decoded = first.chunk.result() if first.chunk else None
                if decoded is not None:
                    self._offset += first.rest
                    yield decoded
                    continue
                self._again += [piece for later in reversed(ahead) for piece in reversed(later.pieces)]
                ahead.clear()
                undecoded, pending, closed = self._take_middle(first.text)
                yield undecoded
                if closed:
                    return pending, True

    def _take_middle(self, text: bytes) -> tuple[Chunk, bytes, bool]:
        """The events in `text`, after which more is to come."""
        chunk, pending, closed = self._take(text, last=False)
        if len(pending) > MAX_PENDING_BYTES and not closed:
            raise IngestError(
                f"no event ends within {MAX_PENDING_BYTES >> 20} MiB after byte "
                f"{self._offset}: this is not a list of trace events"
            )
        return chunk, pending, closed

    def _more(self, pending: bytes) -> list[bytes]:
        """Read at least as much text as is pending, so that each byte is scanned a few times."""
        fresh: list[bytes] = []
        size = 0
        while (piece := self._again.pop() if self._again else next(self._chunks, None)) is not None:
            fresh.append(piece)
            size += len(piece)
            if size >= len(pending):
                break
        return fresh

    def _open_array(self) -> bytes:
        """Read up to the first event, and the values before it into `properties`."""
        text, body, finder = b"", b"", ArrayFinder()
        while (more := self._more(text)) and len(text) <= MAX_PENDING_BYTES:
            text += b"".join(more)
            body = text.removeprefix(_BOM).lstrip()
            self._is_object = body[:1] == b"{"
            if body[:1] == b"[":
                self._offset = len(text) - len(body) + 1
                return body[1:]
            if body and not self._is_object and not _BOM.startswith(text):
                raise IngestError(f"expected a JSON object or array, found {excerpt(body)}")
            if self._is_object and (found := finder.find(body)):
                header, start = found
                if finder.is_skipped:
                    self._warn("deep_metadata", "skipped the text before the events: it is too large or deep")
                self.properties.update(header)
                self._offset = len(text) - len(body) + start
                return body[start:]
        if not body:
            raise IngestError("expected a trace, found an empty file")
        raise no_array(body)

    def _take(self, text: bytes, last: bool) -> tuple[Chunk, bytes, bool]:
        """The complete events in `text`, the rest of it, and whether the array ended."""
        for cut, rest, closed in self._ends(text) if last else _borders(text):
            if (chunk := self._decode(text, cut)) is not None:
                self._offset += rest
                return chunk, text[rest:], closed
        chunk, remaining, closed = TolerantReader(text, self._offset, last, self._warn).read()
        self._offset += len(text) - len(remaining)
        return chunk, remaining, closed

    def _ends(self, text: bytes) -> Iterator[tuple[int, int, bool]]:
        """Likely ends of the array, as (end of the last event, start of the rest, True)."""
        for match in _last_matches(_CLOSE, text):
            rest = text[match.end() :]
            if load(b'{"":0' + rest) is not None if self._is_object else not rest.strip():
                yield match.start() + 1, match.end(), True
        yield len(text.rstrip().removesuffix(b",").rstrip()), len(text), False

    def _finish(self, rest: bytes, closed: bool) -> Iterator[Chunk]:
        """Read the text after the array's end."""
        if not closed:
            if self._is_object:
                self._warn("truncated_file", "the file ends before its array of events does")
            return
        while (more := self._more(rest)) and len(rest) <= MAX_PENDING_BYTES:
            rest += b"".join(more)
        if not self._is_object:
            if rest.strip():
                self._warn("trailing_text", f"text after the array of events: {excerpt(rest)}")
            return
        parts = trailer(rest) if len(rest) <= _LARGEST_BYTES else None
        if parts is None:
            self._warn(
                "malformed_trailer", f"text after the events is not JSON, or too large: {excerpt(rest)}"
            )
            return
        properties, further = parts
        self.properties.update(properties)
        yield from self._further(further)

    def _further(self, values: list[Any]) -> Iterator[Chunk]:
        """The events of a repeated `traceEvents`, which JSON allows."""
        coercion = Coercion(self._warn)
        events = [value for value in values if isinstance(value, dict)]
        if len(events) < len(values):
            self._warn("not_an_event", "expected events (objects) in a repeated `traceEvents`")
        if events:
            yield decode_events([coercion.text(event) for event in events])


def _borders(text: bytes) -> Iterator[tuple[int, int, bool]]:
    """Likely last borders between two events, as (end of one, start of the next, False)."""
    for match in _last_matches(_BORDER, text):
        yield match.start() + 1, match.end() - 1, False


def _last_matches(pattern: re.Pattern[bytes], text: bytes) -> list[re.Match[bytes]]:
    for window in (_WINDOW >> 4, _WINDOW):
        matches = list(pattern.finditer(text, max(0, len(text) - window)))
        if len(matches) >= _TRIES:
            break
    return matches[: -_TRIES - 1 : -1]


_TOKEN = re.compile(TOKEN.encode(), re.DOTALL)
_KEY = b'"traceEvents"'
_ARRAY = re.compile(rb"\s*:\s*\[")
_CUT = re.compile(rb"\s*:?\s*\Z")


class ArrayFinder:
    """Finds the top-level array `traceEvents` in a growing text, scanning each byte once."""

    def __init__(self) -> None:
        self._position = self._depth = 0
        self._is_malformed = False
        self.is_skipped = False  # whether the properties are too large, or nest too deeply, to be read
        self.scanned = 0  # tokens, for tests

    def find(self, text: bytes) -> tuple[dict[str, Any], int] | None:
        """The properties before the array and the start of its content, or None if not there yet.

        The text is a JSON object from its brace on; each call extends the text of the last call.
        """
        if self._is_malformed:
            return None
        for token in _TOKEN.finditer(text, self._position):
            self.scanned += 1
            start, end = token.span()
            is_key = self._depth == 1 and token[0] == _KEY
            if end == len(text) or (is_key and _CUT.match(text, end)):
                return None  # more text may complete it
            if is_key and (array := _ARRAY.match(text, end)):
                return self._header(text[:start], array.end())
            self._depth += LEVELS[token.lastindex] * (end - start)
            self._position = end
        return None

    def _header(self, text: bytes, start: int) -> tuple[dict[str, Any], int] | None:
        try:
            header = _parsed(text + b'"traceEvents":[]}') if len(text) <= _LARGEST_BYTES else None
        except NestingError:
            header = None
        except ValueError:
            self._is_malformed = True
            return None
        if header is None:
            self.is_skipped = True
            return {}, start
        header.pop("traceEvents")
        return header, start


def trailer(text: bytes) -> tuple[dict[str, Any], list[Any]] | None:
    """The properties after the array, and the events of further arrays under the same key."""
    text = b'{"":0' + text
    properties = load(text)
    if not isinstance(properties, dict):
        return None
    properties.pop("")
    if "traceEvents" not in properties:
        return properties, []
    properties.pop("traceEvents")
    return properties, _EVERY_ARRAY.decode(text.decode("utf-8", "surrogateescape"))["traceEvents"]


def _joined(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object in which a repeated `traceEvents` holds the events of all its arrays."""
    data = dict(pairs)
    if "traceEvents" in data:
        arrays = [value for key, value in pairs if key == "traceEvents" and isinstance(value, list)]
        data["traceEvents"] = [event for array in arrays for event in array]
    return data


_EVERY_ARRAY = json.JSONDecoder(strict=False, parse_float=Written, parse_int=whole, object_pairs_hook=_joined)


def no_array(text: bytes) -> IngestError:
    """The error for an object without the array of events."""
    data = load(text) if len(text) <= _LARGEST_BYTES else None
    with suppress(msgspec.DecodeError, ValueError):  # texts take no more memory
        data = data or decode(text, dict[str, msgspec.Raw])
    if not isinstance(data, dict):
        return IngestError(
            f"expected a top-level array `traceEvents`; found text that is not JSON: {excerpt(text)}"
        )
    if "traceEvents" in data:
        kind = type(data["traceEvents"]).__name__.replace("Raw", "a large value")
        return IngestError(f"expected `traceEvents` to be an array, found {kind}")
    keys = f"the keys {', '.join(list(data)[:8])}" if data else "nothing"
    expected = f"expected a top-level array `traceEvents`; found {keys}"
    return IngestError(foreign_json(data) or expected)


def load(text: bytes) -> Any:
    """Parsed JSON as recorders write it, or None if it is malformed."""
    with suppress(ValueError):
        return _parsed(text)
    return None


def _parsed(text: bytes) -> Any:
    return parse_json(text.decode("utf-8", "replace"))
