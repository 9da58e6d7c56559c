"""Reads events one by one from malformed JSON, and writes them as the compiled decoder takes them.

The standard library's reader accepts what JSON forbids but recorders write: raw control characters,
bytes that are not UTF-8, numbers as names. Unreadable text is skipped with a warning, and reading
continues at the next object that has a phase.
"""

import json
import re
import sys
from contextlib import suppress
from math import isnan
from typing import Any

from stepscope.errors import IngestError
from stepscope.read.byte_stream import Warn
from stepscope.read.chrome.chunk import Chunk
from stepscope.read.chrome.compiled_decoder import decode_events, is_event

MAX_PENDING_BYTES = 64 << 20  # of one event: more is no list of events
_NEXT = re.compile(r"[,\n]\s{0,64}(?=\{)")  # after more white space comes another line
_BETWEEN = re.compile(r"[\s,]*")
_WINDOW = 1 << 14  # characters, in which most events end
_COSTLY, _TRIES = 1 << 12, 16  # characters of an attempt that counts; so many, then fewer are made
_ALL = "+" if sys.version_info >= (3, 11) else ""  # possessive: a way back takes 60 bytes a character
# Lists and objects without others and without strings, brackets that open or close, or a whole string,
# or the beginning of one that the text cuts off.
TOKEN = (
    rf'(?:[\[{{][^][{{}}"]*[\]}}][^][{{}}"]*)+{_ALL}|([\[{{]+)|([\]}}]+)'
    rf'|"[^"\\]*(?:\\.[^"\\]*)*{_ALL}(?:"|\\?\Z)'
)
LEVELS = {None: 0, 1: 1, 2: -1}  # of nesting, for each character of a group of `TOKEN`
_TOKEN = re.compile(TOKEN, re.DOTALL)
# The least event is `{"ph":"X","ts":1,"dur":1}`; a file of millions of less would take minutes.
_LEAST_BYTES, _CHECKED_EVENTS = 24, 1 << 16
_DEEPEST = 200_000  # levels of an event, of which no recorder writes a hundred
_TAIL = 16  # a truncated number or literal at the end of the text is shorter
_NOT_UNICODE = re.compile("[\ud800-\udfff]")
_ESCAPED = re.compile(r'["\\\x00-\x1f]')
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_LONGEST_US = 1e300  # JSON has no infinity; any such duration is refused later


class Written(float):
    """A number that keeps its text: a float alone would lose its nanoseconds."""

    text: str

    def __new__(cls, text: str) -> "Written":
        self = super().__new__(cls, text)
        self.text = text
        return self


def whole(text: str) -> int | Written:
    """An integer, or its text if it has thousands of digits, which Python refuses to convert."""
    try:
        return int(text)
    except ValueError:
        return Written(text)


DECODER = json.JSONDecoder(strict=False, parse_float=Written, parse_int=whole)


class Coercion:
    """Writes parsed JSON as text of an event, whatever the types of its values; warns of changes."""

    def __init__(self, warn: Warn) -> None:
        self._warn = warn

    def text(self, value: dict[str, Any]) -> bytes:
        """The text of an event, which the compiled decoder takes."""
        with suppress(RecursionError):
            if is_event(text := self._written(value)):
                return text
        self._warn("deep_arguments", "skipped an event's arguments: nested too deeply")
        flat = {key: part for key, part in value.items() if not isinstance(part, dict | list)}
        return self._written(flat)

    def _written(self, value: dict[str, Any]) -> bytes:
        fields = {
            "ph": _ESCAPED.sub(_REPLACEMENT, self._text(value.get("ph"))),
            **{name: self._text(value.get(name)) for name in ("name", "cat")},
            "ts": _number_text(value.get("ts")),
            **{name: _float(value.get(name)) for name in ("dur", "tdur")},
            **{name: self._identity(value.get(name)) for name in ("pid", "tid", "id")},
            **{name: value.get(name) for name in ("id2", "args")},
        }
        present = {name: part for name, part in fields.items() if part is not None}
        return self._clean(json.dumps(present, ensure_ascii=False)).encode()

    def _text(self, value: Any) -> str:
        if isinstance(value, Written):
            return self._clean(value.text)
        return self._clean(value if isinstance(value, str) else "" if value is None else json.dumps(value))

    def _clean(self, text: str) -> str:
        cleaned = _NOT_UNICODE.sub(_REPLACEMENT, text)
        if cleaned != text:
            self._warn("invalid_text", "some text is not valid Unicode; invalid characters are shown as �")
        return cleaned

    def _identity(self, value: Any) -> int | str | None:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, int):
            is_plain = abs(value) < 1 << 63 and not isinstance(value, bool)
            return value if is_plain else str(value)
        return None if value is None else self._text(value)


def _float(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return None if isnan(number) else min(max(number, -_LONGEST_US), _LONGEST_US)


def _number_text(value: Any) -> str | None:
    """A number as written, in a string, which the decoder of times takes as well."""
    return None if value is None else str(getattr(value, "text", value))


class TolerantReader:
    """Reads the events in some text, which begins at the border of two events and `offset` bytes on.

    `last` is whether the file ends there; `warn` is called for everything malformed.
    """

    def __init__(self, data: bytes, offset: int, last: bool, warn: Warn) -> None:
        self._text = data.decode("utf-8", "surrogateescape")
        self._last = last
        self._warn = warn
        self._coercion = Coercion(warn)
        self._events: list[bytes] = []
        self._place = (0, offset)

    def read(self) -> tuple[Chunk, bytes, bool]:
        """The complete events, the text after them, and whether the array ended."""
        text, position, count = self._text, self._between(0), 0
        while position < len(text) and text[position] != "]":
            following = self._step(position)
            if following is None:
                break
            position = self._between(following)
            count += 1
            if not count % _CHECKED_EVENTS and position < _LEAST_BYTES * count:
                raise IngestError("the file holds no trace events, but a list of tiny values")
        closed = text[position : position + 1] == "]"
        rest = text[position + closed :].encode("utf-8", "surrogateescape")
        if self._last and not closed and rest:
            self._warn("truncated_event", f"the file ends inside an event, at {excerpt(rest)}")
            rest = b""
        return decode_events(self._events), rest, closed

    def _step(self, position: int) -> int | None:
        """Read the event at `position`; return where to continue, or None to wait for more text."""
        try:
            value, end = self._decode(position)
        except (ValueError, RecursionError) as error:
            if not self._last and self._ran_out(error, position):
                return None
            following = self._resume(position, error)
            if following is not None:
                self._reject(position, following, error)
            return following
        if isinstance(value, dict):
            self._events.append(_exact(self._text[position:end]) or self._coercion.text(value))
        else:
            shown = self._excerpt(position, end)
            self._warn("not_an_event", f"expected an event (an object), found {shown}")
        return end

    def _decode(self, position: int) -> tuple[Any, int]:
        """The value at `position` and its end.

        A JSONDecodeError counts lines from the start of its text, so that text must be short.
        """
        window = self._text[position : position + _WINDOW]
        try:
            value, end = DECODER.raw_decode(window)
        except json.JSONDecodeError as error:
            if len(window) < _WINDOW or not _at_end(error, window):
                error.pos += position
                raise
            return DECODER.raw_decode(self._text, position)
        if end >= len(window) - _TAIL:  # a number may go on
            return DECODER.raw_decode(self._text, position)
        return value, position + end

    def _ran_out(self, error: Exception, position: int) -> bool:
        """Whether reading failed because the text ends, as with the last event of a chunk."""
        if isinstance(error, RecursionError):
            return self._skip_value(position) is None and self._may_wait(position)
        return (
            isinstance(error, json.JSONDecodeError)
            and _at_end(error, self._text)
            and self._may_wait(position)
        )

    def _may_wait(self, position: int) -> bool:
        return len(self._text) - position < MAX_PENDING_BYTES

    def _resume(self, position: int, error: Exception) -> int | None:
        """Where to continue after a malformed event: the next readable object with a phase."""
        if isinstance(error, RecursionError) and (end := self._skip_value(position)) is not None:
            return end
        costly, earliest = 0, 0
        for border in _NEXT.finditer(self._text, position + 1):
            start = border.end()
            if start < earliest:
                continue
            reached = self._readable_until(start)
            if reached is None:
                return start
            # Of many objects that each contain the next, not all are tried: each takes as long as
            # all that it contains.
            costly += reached - start > _COSTLY
            earliest = start + (reached - start) // _TRIES if costly > _TRIES else 0
        return None

    def _readable_until(self, position: int) -> int | None:
        """None if an object with a phase can be read at `position`, else how far it can."""
        try:
            value, end = self._decode(position)
        except json.JSONDecodeError as error:
            return error.pos
        except RecursionError:
            return self._skip_value(position, sys.getrecursionlimit()) or len(self._text)
        except ValueError:
            return position
        return None if isinstance(value, dict) and "ph" in value else end

    def _skip_value(self, position: int, deepest: int = 2**62) -> int | None:
        """The end of the value at `position` by its brackets, or of its nesting `deepest` levels.

        None if it has no end.
        """
        depth = 0
        for token in _TOKEN.finditer(self._text, position):
            if token.lastindex is None and depth:
                continue
            before, depth = depth, depth + LEVELS[token.lastindex] * len(token[0])
            if depth <= 0:
                return token.start() + before
            if depth >= deepest:
                return token.end()
            if depth > _DEEPEST:
                raise IngestError(f"the file holds no trace events, but values in {_DEEPEST:,} others")
        return None

    def _reject(self, position: int, end: int, error: Exception) -> None:
        shown = self._excerpt(position, end)
        why = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply"
        self._warn(
            "malformed_event", f"an event is not JSON ({why}), first at byte {self._byte(position)}: {shown}"
        )

    def _excerpt(self, position: int, end: int) -> str:
        return excerpt(self._text[position : min(end, position + 100)].encode("utf-8", "surrogateescape"))

    def _byte(self, position: int) -> int:
        """The byte offset of `position` in the file; positions must ascend between calls."""
        before, byte = self._place
        byte += len(self._text[before:position].encode("utf-8", "surrogateescape"))
        self._place = (position, byte)
        return byte

    def _between(self, position: int) -> int:
        match = _BETWEEN.match(self._text, position)
        return match.end() if match else position


def _exact(text: str) -> bytes | None:
    """The text of an event as written; None where it is not well formed."""
    with suppress(UnicodeEncodeError):
        if is_event(event := text.encode()):
            return event
    return None


def _at_end(error: json.JSONDecodeError, text: str) -> bool:
    return error.pos >= len(text) - _TAIL or error.msg.startswith("Unterminated")


def excerpt(text: bytes) -> str:
    """The start of a text, for a message."""
    return repr(text[:60].decode("utf-8", "replace")) + ("…" if len(text) > 60 else "")
