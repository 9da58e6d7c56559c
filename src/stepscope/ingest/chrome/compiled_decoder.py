"""Calls the compiled decoder of trace events, `native/decode_events.cpp`.

It decodes what is well formed and leaves the rest to Python: it returns None for text that is odd
in any way, and the place in the text of each value that needs more than a glance. Such values are
decoded by msgspec here, as `records.py` does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.arrays import Array, Floats, IntArray, Times
from stepscope.compiled.build import LIBRARY
from stepscope.compiled.library import Function, function
from stepscope.ingest.chrome.chunk import NO_IDENTITY, Chunk, Label, Place
from stepscope.ingest.chrome.known_arguments import (
    FIELDS,
    default_of,
    integers,
    known_of,
)
from stepscope.ingest.chrome.timestamps import nanoseconds
from stepscope.trace.arguments import Block

Decode = Callable[[bytes], Chunk | None]

_MOST_BYTES = 8 << 20  # chunks are of one MiB; more is an event as long, which needs no speed
_BYTES_PER_ROW = 24  # an event with a phase, a time, a process and a thread is longer
# As `Column` in C++; a text takes two columns, its start and its end.
_WIDTHS = {
    "source": 1, "place": 1, "name": 1, "time_ns": 1, "time_text": 2, "duration_us": 1,
    "duration_text": 2, "thread_duration_us": 1, "thread_duration_text": 2, "identity": 1,
    "identity_text": 2, "local_identity_text": 2, "arguments_text": 2, "has_odd_arguments": 1,
    "arguments": len(FIELDS), "label_place": 1, "label_name": 2, "label_arguments": 2,
    "name_text": 2, "phase": 2, "category": 2, "process": 2, "thread": 2,
}  # fmt: skip
_START = dict(zip(_WIDTHS, accumulate(_WIDTHS.values(), initial=0), strict=False))
_COLUMNS = sum(_WIDTHS.values())
# As `Count` in C++.
_COUNTS = (
    "records", "events", "labels", "names", "places", "argument_bytes", "odd_times",
    "odd_durations", "odd_thread_durations", "identities", "odd_identities", "local_identities",
    "odd_arguments", "used_arguments",
)  # fmt: skip
_DEFAULTS = np.array([default_of(field) for field in FIELDS], np.int64)
_TEXTS = msgspec.json.Decoder(list[str])
_IDENTITIES = msgspec.json.Decoder(list[int | str | None])
_NUMBERS = msgspec.json.Decoder(list[float | None])
_scratch = threading.local()


def compiled_decoder(library: Path = LIBRARY) -> Decode | None:
    """The compiled decoder; None where it was not built, or is switched off.

    It may be called from several threads at once, and runs without the interpreter's lock. Given
    the text of some events without the brackets of their array, it returns their columns, or None
    where Python shall read the text.
    """
    decode_events = function("stepscope_decode_events", library)
    return decode_events and partial(_chunk, decode_events)


def _chunk(decode_events: Function, text: bytes) -> Chunk | None:
    if len(text) > _MOST_BYTES:
        return None
    try:
        if not text.isascii():
            text.decode()
        decoded = _Decoded.of(text, decode_events)
        return decoded.chunk() if decoded else None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


class _Decoded:
    """What the compiled decoder found in some text."""

    def __init__(self, text: bytes, table: IntArray, counts: IntArray, joined: bytes) -> None:
        self._text, self._table, self._joined = text, table, joined
        self._count = dict(zip(_COUNTS, counts.tolist(), strict=True))

    @classmethod
    def of(cls, text: bytes, decode_events: Function) -> _Decoded | None:
        rows = len(text) // _BYTES_PER_ROW + 1
        table = _table(rows)
        joined = np.empty(len(text), np.uint8)
        counts = np.empty(len(_COUNTS), np.int64)
        done = decode_events(text, len(text), table.shape[1], _DEFAULTS, table, joined, counts)
        if not done:
            return None
        return cls(text, table, counts, joined[: counts[_COUNTS.index("argument_bytes")]].tobytes())

    def chunk(self) -> Chunk:
        places = self._places()
        numbers = {"time_ns": self._times(), "duration_us": self._durations("duration")}
        thread = self._durations("thread_duration")
        if not np.isnan(thread).all():
            numbers["thread_duration_us"] = thread
        return Chunk(
            size=self._count["records"],
            places=places,
            labels=self._labels(places),
            source=self._codes("source"),
            place=self._codes("place"),
            names=_TEXTS.decode(_array(self._texts("name_text", "names"), b'""')),
            name=self._codes("name"),
            identities=self._identities(),
            numbers=numbers | self._known(),
            arguments=self._block(),
        )

    # -- the table

    def _column(self, name: str, rows: str = "events", offset: int = 0) -> IntArray:
        column: IntArray = self._table[_START[name] + offset, : self._count[rows]]
        return column

    def _codes(self, name: str) -> NDArray[np.int32]:
        return self._column(name).astype(np.int32)

    def _texts(self, name: str, rows: str = "events") -> list[bytes]:
        """The text of each value, empty for an absent one."""
        start, end = self._column(name, rows), self._column(name, rows, 1)
        return [self._text[a:b] for a, b in zip(start.tolist(), end.tolist(), strict=True)]

    # -- its columns

    def _places(self) -> list[Place]:
        phases, categories = (
            _TEXTS.decode(_array(self._texts(name, "places"), b'""'))
            for name in ("phase", "category")
        )
        processes, threads = (
            _IDENTITIES.decode(_array(self._texts(name, "places"), b"null"))
            for name in ("process", "thread")
        )
        return list(map(Place, phases, categories, processes, threads))

    def _labels(self, places: list[Place]) -> list[Label]:
        at = self._column("label_place", "labels").tolist()
        names = _TEXTS.decode(_array(self._texts("label_name", "labels"), b'""'))
        texts = self._texts("label_arguments", "labels")
        return [
            Label(places[code], name, text)
            for code, name, text in zip(at, names, texts, strict=True)
        ]

    def _times(self) -> NDArray[np.int64]:
        if self._count["odd_times"]:
            return nanoseconds(self._texts("time_text"))
        return self._column("time_ns").astype(np.int64)

    def _durations(self, name: str) -> Floats:
        if self._count[f"odd_{name}s"]:
            found = _NUMBERS.decode(_array(self._texts(f"{name}_text"), b"null"))
            return np.array(found, np.float64)
        return self._column(f"{name}_us").view(np.float64).copy()

    def _identities(self) -> Times | list[Any]:
        if not self._count["odd_identities"] and not self._count["local_identities"]:
            is_there = self._column("identity_text", offset=1) > 0
            return np.where(is_there, self._column("identity"), NO_IDENTITY)
        found = _IDENTITIES.decode(_array(self._texts("identity_text"), b"null"))
        local = self._texts("local_identity_text")
        return [b or None if a is None else a for a, b in zip(found, local, strict=True)]

    # -- arguments

    def _block(self) -> Block | None:
        start, end = self._column("arguments_text"), self._column("arguments_text", offset=1)
        rows = np.flatnonzero(end)
        if not len(rows):
            return None
        source = self._codes("source")[rows]
        return Block.joined(source, np.cumsum((end - start)[rows]), self._joined)

    def _known(self) -> dict[str, Array]:
        used, odd = self._count["used_arguments"], self._count["odd_arguments"]
        columns: dict[str, Array] = {
            field: self._column("arguments", offset=index).copy()
            for index, field in enumerate(FIELDS)
            if odd or used >> index & 1
        }
        if odd:
            self._mend(columns)
        return {
            field: column
            for field, column in columns.items()
            if (column != default_of(field)).any()
        }

    def _mend(self, columns: dict[str, Array]) -> None:
        """Decode the arguments of other types than expected."""
        start, end = self._column("arguments_text"), self._column("arguments_text", offset=1)
        rows = np.flatnonzero(self._column("has_odd_arguments"))
        known = [known_of(self._text[int(start[row]) : int(end[row])]) for row in rows]
        for field, column in columns.items():
            column[rows] = integers(known, field)


def _table(rows: int) -> IntArray:
    """Room for the columns of a chunk, kept for the next chunk of the same thread."""
    table: IntArray | None = getattr(_scratch, "table", None)
    if table is None or table.shape[1] < rows:
        table = _scratch.table = np.empty((_COLUMNS, rows), np.int64)
    return table


def _array(texts: list[bytes], absent: bytes) -> bytes:
    """The text of a JSON array of some values."""
    return b"[" + b",".join([text or absent for text in texts]) + b"]"
