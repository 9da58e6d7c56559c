"""One trace event as written, and its conversion from values of unexpected types."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from msgspec import Raw, Struct

from stepscope.ingest.byte_stream import Warn

INVALID_TEXT = "some text is not valid Unicode; invalid characters are shown as �"
NOTHING = Raw(b"")
_NOT_UNICODE = re.compile("[\ud800-\udfff]")


class Record(Struct, gc=False):
    """One event as written; `ts` and `args` stay text until a column needs them."""

    ph: str = ""
    name: str = ""
    cat: str = ""
    ts: Raw = NOTHING
    dur: float | None = None
    tdur: float | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    id: int | str | None = None
    id2: Raw = NOTHING
    args: Raw = NOTHING


class Written(float):
    """A number that keeps its text: a float alone would lose its nanoseconds."""

    text: str

    def __new__(cls, text: str) -> Written:
        self = super().__new__(cls, text)
        self.text = text
        return self


def whole(text: str) -> int | Written:
    """An integer, or its text if it has thousands of digits, which Python refuses to convert."""
    try:
        return int(text)
    except ValueError:
        return Written(text)


class Coercion:
    """Converts parsed JSON to records, whatever the types of its values; warns of changes."""

    def __init__(self, warn: Warn) -> None:
        self._warn = warn

    def record(self, value: dict[str, Any]) -> Record:
        """The record of a JSON object."""
        return Record(
            ph=self._text(value.get("ph")),
            name=self._text(value.get("name")),
            cat=self._text(value.get("cat")),
            ts=_number_text(value.get("ts")),
            dur=_float(value.get("dur")),
            tdur=_float(value.get("tdur")),
            pid=self._identity(value.get("pid")),
            tid=self._identity(value.get("tid")),
            id=self._identity(value.get("id")),
            id2=self._json(value.get("id2")),
            args=self._json(value.get("args")),
        )

    def _text(self, value: Any) -> str:
        text = value if isinstance(value, str) else "" if value is None else _dumped(value)
        return self._clean(text)

    def _clean(self, text: str) -> str:
        cleaned = _NOT_UNICODE.sub("\N{REPLACEMENT CHARACTER}", text)
        if cleaned != text:
            self._warn(
                "invalid_text", "some text is not valid Unicode; invalid characters are shown as �"
            )
        return cleaned

    def _identity(self, value: Any) -> int | str | None:
        if isinstance(value, float) and value.is_integer():
            return int(value)
        return value if value is None or isinstance(value, int) else self._text(value)

    def _json(self, value: Any) -> Raw:
        if value is None:
            return NOTHING
        try:
            return Raw(self._clean(json.dumps(value, ensure_ascii=False)).encode())
        except RecursionError:
            self._warn("deep_arguments", "skipped an event's arguments: nested too deeply")
            return NOTHING


def _dumped(value: Any) -> str:
    return value.text if isinstance(value, Written) else json.dumps(value)


def _float(value: Any) -> float | None:
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _number_text(value: Any) -> Raw:
    if value is None:
        return NOTHING
    return Raw(getattr(value, "text", str(value)).encode("utf-8", "replace"))
