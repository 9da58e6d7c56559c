"""Events one by one from JSON that is not quite JSON.

The standard library's reader accepts what JSON forbids but recorders write: NaN, raw control
characters, bytes that are no UTF-8. What nothing can read is set aside with a warning, and reading
goes on at the next object that has a phase.
"""

from __future__ import annotations

import json
import re

from stepscope.ingest.records import Coercion, Record, Written, whole
from stepscope.ingest.stream import Warn

MAX_PENDING_BYTES = 64 << 20
_NEXT = re.compile(r"[,\n]\s*(?=\{)")
_BETWEEN = re.compile(r"[\s,]*")
_TAIL = 16  # a number or a literal that the end of the text cuts off is shorter
DECODER = json.JSONDecoder(strict=False, parse_float=Written, parse_int=whole)


class PatientReader:
    """Reads the events in some text.

    Args:
        data: text from the border of two events on.
        offset: where in the file it begins, bytes.
        last: whether the file ends with it.
        warn: told of everything that cannot be read as it stands.
    """

    def __init__(self, data: bytes, offset: int, last: bool, warn: Warn) -> None:
        self._text = data.decode("utf-8", "surrogateescape")
        self._last = last
        self._warn = warn
        self._coercion = Coercion(warn)
        self._records: list[Record] = []
        self._place = (0, offset)

    def read(self) -> tuple[list[Record], bytes, bool]:
        """The complete events, the text after them, and whether the array ended."""
        text, position = self._text, self._between(0)
        while position < len(text) and text[position] != "]":
            following = self._step(position)
            if following is None:
                break
            position = self._between(following)
        closed = text[position : position + 1] == "]"
        rest = text[position + closed :].encode("utf-8", "surrogateescape")
        if self._last and not closed and rest:
            self._warn("truncated_event", f"the file ends inside an event, at {excerpt(rest)}")
            rest = b""
        return self._records, rest, closed

    def _step(self, position: int) -> int | None:
        """Read the event at `position`: where to go on, or None for want of text."""
        try:
            value, end = DECODER.raw_decode(self._text, position)
        except (ValueError, RecursionError) as error:
            if not self._last and self._ran_out(error, position):
                return None
            following = self._resume(position)
            if following is not None:
                self._reject(position, following, error)
            return following
        if isinstance(value, dict):
            self._records.append(self._coercion.record(value))
        else:
            found = self._excerpt(position, end)
            self._warn("not_an_event", f"expected an event (an object), found {found}")
        return end

    def _ran_out(self, error: Exception, position: int) -> bool:
        """Whether reading failed for want of text, as the last event of a chunk does."""
        return (
            isinstance(error, json.JSONDecodeError)
            and (error.pos >= len(self._text) - _TAIL or error.msg.startswith("Unterminated"))
            and len(self._text) - position < MAX_PENDING_BYTES
        )

    def _resume(self, position: int) -> int | None:
        """Where the next readable object with a phase begins."""
        for border in _NEXT.finditer(self._text, position + 1):
            try:
                value, _ = DECODER.raw_decode(self._text, border.end())
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict) and "ph" in value:
                return border.end()
        return None

    def _reject(self, position: int, end: int, error: Exception) -> None:
        found = self._excerpt(position, end)
        why = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply"
        self._warn(
            "malformed_event",
            f"an event is not JSON ({why}), first at byte {self._byte(position)}: {found}",
        )

    def _excerpt(self, position: int, end: int) -> str:
        shown = self._text[position : min(end, position + 100)]
        return excerpt(shown.encode("utf-8", "surrogateescape"))

    def _byte(self, position: int) -> int:
        """Where in the file `position` is; asked in ascending order, so no byte counts twice."""
        before, byte = self._place
        byte += len(self._text[before:position].encode("utf-8", "surrogateescape"))
        self._place = (position, byte)
        return byte

    def _between(self, position: int) -> int:
        match = _BETWEEN.match(self._text, position)
        return match.end() if match else position


def excerpt(text: bytes) -> str:
    """The beginning of some text, for a message."""
    return repr(text[:60].decode("utf-8", "replace")) + ("…" if len(text) > 60 else "")
