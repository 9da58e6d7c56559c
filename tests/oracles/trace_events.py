"""What `read/chrome/native` decodes, by msgspec: the specification that it is held to."""

from __future__ import annotations

from itertools import compress
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw, Struct

from stepscope.base.arrays import Array, Times
from stepscope.read.chrome.chunk import (
    DEFAULTS,
    NO_IDENTITY,
    ChromePlace,
    Chunk,
    Label,
    known_arguments,
    nanoseconds,
)
from stepscope.trace.arguments import ArgumentBlock
from stepscope.trace.sets import Interner

NOTHING = Raw(b"")
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


_RECORDS = msgspec.json.Decoder(list[Record])


def decode_chunk(text: bytes, size: int) -> Chunk | None:
    """The columns of the events in the first bytes of a text, or None if it is malformed."""
    text = text[:size]
    try:
        text.decode()  # msgspec does not validate what it leaves as raw text
        return chunk_of(_RECORDS.decode(b"[%b]" % text))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def chunk_of(records: list[Record]) -> Chunk:
    """The columns of some records."""
    size, source = len(records), np.arange(len(records), dtype=np.int32)
    distinct: Interner[Any] = Interner()
    place = distinct.codes(map(_PLACE, records), size)
    places = [ChromePlace(*values) for values in distinct]
    labels: list[Label] = []
    is_label = np.array([place_.phase == "M" for place_ in places], np.bool_)[place]
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
    known, columns = np.array([known_arguments(bytes(text)) for text in texts], np.int64), {}
    for (name, default), values in zip(DEFAULTS.items(), known.T, strict=True):
        if (values != default).any():
            columns[name] = np.full(count, default, np.int64)
            columns[name][rows] = values
    return columns
