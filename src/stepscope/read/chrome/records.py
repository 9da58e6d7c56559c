"""One trace event as written, its conversion from values of unexpected types, and its columns."""

from __future__ import annotations

import json
import math
import re
from itertools import compress
from operator import attrgetter
from typing import Any

import numpy as np
from msgspec import Raw, Struct

from stepscope.base.arrays import Array, Times
from stepscope.read.byte_stream import Warn
from stepscope.read.chrome.chunk import (
    FIELDS,
    NO_IDENTITY,
    ChromePlace,
    Chunk,
    Label,
    default_of,
    integers,
    known_of,
    nanoseconds,
)
from stepscope.trace.arguments import ArgumentBlock
from stepscope.trace.sets import Interner

NOTHING = Raw(b"")
_NOT_UNICODE = re.compile("[\ud800-\udfff]")
_PLACE = attrgetter("ph", "cat", "pid", "tid")


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
        if isinstance(value, Written):
            return self._clean(value.text)
        return self._clean(value if isinstance(value, str) else "" if value is None else json.dumps(value))

    def _clean(self, text: str) -> str:
        cleaned = _NOT_UNICODE.sub("\N{REPLACEMENT CHARACTER}", text)
        if cleaned != text:
            self._warn("invalid_text", "some text is not valid Unicode; invalid characters are shown as �")
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


def _float(value: Any) -> float | None:
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _number_text(value: Any) -> Raw:
    if value is None:
        return NOTHING
    return Raw(getattr(value, "text", str(value)).encode("utf-8", "replace"))


# -- columns


def chunk_of(records: list[Record]) -> Chunk:
    """The columns of some records."""
    size, source = len(records), np.arange(len(records), dtype=np.int32)
    distinct: Interner[Any] = Interner()
    place = distinct.codes(map(_PLACE, records), size)
    places = [ChromePlace(*values) for values in distinct]
    labels: list[Label] = []
    is_label = np.array([place_.is_label for place_ in places], np.bool_)[place]
    if is_label.any():
        labels = [
            Label(ChromePlace(*_PLACE(record)), record.name, bytes(record.args))
            for record in compress(records, is_label)
        ]
        records = list(compress(records, ~is_label))
        place, source = place[~is_label], source[~is_label]
    names: Interner[str] = Interner()
    name = names.codes(map(attrgetter("name"), records), len(records))
    chunk = Chunk(size, places, labels, source, place, list(names), name, _identities(records))
    chunk.numbers = {
        "time_ns": nanoseconds([bytes(record.ts) for record in records]),
        "duration_us": np.array([record.dur for record in records], np.float64),
    }
    if any(record.tdur is not None for record in records):
        thread = np.array([record.tdur for record in records], np.float64)
        chunk.numbers["thread_duration_us"] = thread
    _pack(chunk, records)
    return chunk


def _identities(records: list[Record]) -> Times | list[Any]:
    found = list(map(attrgetter("id"), records))
    if any(map(attrgetter("id2"), records)):
        for row, local in enumerate(map(attrgetter("id2"), records)):
            if local and found[row] is None:
                found[row] = bytes(local)
    return found if found.count(None) < len(found) else np.full(len(found), NO_IDENTITY)


def _pack(chunk: Chunk, records: list[Record]) -> None:
    """Keep all arguments as text, and those that become columns as numbers too."""
    texts = list(map(attrgetter("args"), records))
    rows = np.flatnonzero(np.fromiter(map(len, texts), np.int64, len(texts)))
    if not len(rows):
        return
    texts = list(filter(None, texts))
    ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
    chunk.arguments = ArgumentBlock.several(chunk.source[rows], ends, b"".join(texts))
    chunk.numbers |= _known_columns(texts, rows, len(records))


def _known_columns(texts: list[Raw], rows: Array, count: int) -> dict[str, Array]:
    known, columns = list(map(known_of, texts)), {}
    for field in FIELDS:
        values, default = integers(known, field), default_of(field)
        if (values != default).any():
            columns[field] = np.full(count, default, np.int64)
            columns[field][rows] = values
    return columns
