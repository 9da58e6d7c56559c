"""Columns of records, the way of every file that the compiled decoder does not read."""

from __future__ import annotations

from itertools import compress
from operator import attrgetter
from typing import Any

import numpy as np
from msgspec import Raw

from stepscope.arrays import Array, Floats, Times
from stepscope.ingest.chrome.chunk import NO_IDENTITY, Chunk, Label, Place
from stepscope.ingest.chrome.known_arguments import (
    decode_known,
    default_of,
    fields_in,
    integers,
)
from stepscope.ingest.chrome.records import Record
from stepscope.ingest.chrome.timestamps import nanoseconds
from stepscope.trace.arguments import ArgumentBlock
from stepscope.trace.interner import Interner

_PLACE = attrgetter("ph", "cat", "pid", "tid")


def chunk_of(records: list[Record]) -> Chunk:
    """The columns of some records."""
    size, source = len(records), np.arange(len(records), dtype=np.int32)
    distinct: Interner[Any] = Interner()
    place = distinct.codes(map(_PLACE, records), size)
    places = [Place(*values) for values in distinct]
    labels: list[Label] = []
    is_label = np.array([place_.is_label for place_ in places], np.bool_)[place]
    if is_label.any():
        labels = _labels(list(compress(records, is_label)))
        records = list(compress(records, ~is_label))
        place, source = place[~is_label], source[~is_label]
    names: Interner[str] = Interner()
    name = names.codes(map(attrgetter("name"), records), len(records))
    chunk = Chunk(size, places, labels, source, place, list(names), name, _identities(records))
    chunk.numbers = {
        "time_ns": nanoseconds(_texts([record.ts for record in records])),
        "duration_us": _floats([record.dur for record in records]),
    }
    if any(record.tdur is not None for record in records):
        chunk.numbers["thread_duration_us"] = _floats([record.tdur for record in records])
    _pack(chunk, records)
    return chunk


def _labels(records: list[Record]) -> list[Label]:
    return [Label(Place(*_PLACE(record)), record.name, bytes(record.args)) for record in records]


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
    joined = b",".join(texts)
    known, columns = decode_known(joined, texts), {}
    for field in fields_in(joined, len(texts)):
        values, default = integers(known, field), default_of(field)
        if (values != default).any():
            columns[field] = np.full(count, default, np.int64)
            columns[field][rows] = values
    return columns


def _floats(values: list[float | None]) -> Floats:
    if values.count(None) == len(values):
        return np.full(len(values), np.nan)
    return np.array(values, np.float64)


def _texts(raws: list[Raw]) -> list[bytes]:
    """The text of each value; joining and splitting is far faster than converting each."""
    if not raws:
        return []
    texts = b"\n".join(raws).split(b"\n")
    return texts if len(texts) == len(raws) else [bytes(raw) for raw in raws]
