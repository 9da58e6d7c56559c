"""The messages of an XSpace: planes, their lines, what their events and stats are called.

Source: xplane.proto (https://github.com/openxla/xla, third_party/tsl/tsl/profiler/protobuf), whose
field numbers are the ones below.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stepscope.ingest.tally import Tally
from stepscope.ingest.wire import (
    BYTES,
    FIXED64,
    VARINT,
    Damage,
    Field,
    Offsets,
    Span,
    doubles,
    fields,
    padded,
    repeated,
    signed,
)

_LONGEST_TEXT = 1 << 20
# The first plane, with an id or without, and the beginning of its name; Perfetto's traces are
# messages of the same outline.
_FIRST_PLANE = re.compile(
    rb"^\x0a[\x80-\xff]{0,9}[\x00-\x7f](?:\x08[\x80-\xff]{0,9}[\x00-\x7f])?"
    rb"\x12.{1,2}(?:[/#]|Host CPUs|Syscalls|Task Env)",
    re.DOTALL,
)


def is_space(head: bytes) -> bool:
    """Whether a file's first bytes look like an XSpace."""
    return bool(_FIRST_PLANE.match(head))


@dataclass
class Source:
    """The bytes of one file, and what is told while reading them."""

    data: bytes
    tally: Tally
    damage: Damage = field(default_factory=Damage)

    def __post_init__(self) -> None:
        self.octets = padded(self.data)

    def fields(self, span: Span) -> Iterator[Field]:
        """The fields of the message at `span`."""
        return fields(self.data, span, self.damage)

    def text(self, start: int, end: int) -> str:
        """Bytes as text; what is no UTF-8 shows as a replacement character."""
        return self.decoded(self.data[start:end])

    def decoded(self, raw: bytes) -> str:
        """The same of bytes taken out, up to a mebibyte of them."""
        raw = raw[:_LONGEST_TEXT]
        text = raw.decode("utf-8", "replace")
        if "\N{REPLACEMENT CHARACTER}" in text and text.encode() != raw:
            self.tally("invalid_text", "some text is not Unicode; what is unreadable shows as �")
        return text

    def double(self, start: int) -> float:
        """The eight bytes at `start` as a double."""
        return float(doubles(self.octets, np.array([start]))[0])


@dataclass
class Line:
    """One timeline of a plane: its events are at `starts` to `ends` in the file."""

    id: int
    name: str
    timestamp_ns: int
    starts: Offsets
    ends: Offsets


@dataclass
class EventKind:
    """What all events of one metadata id share: names, and where their stats stand."""

    name: str = ""
    display_name: str = ""
    stats: list[Span] = field(default_factory=list)


@dataclass
class Plane:
    """One plane: a device, the host, or a place for what is common to all."""

    name: str
    lines: list[Line]
    kinds: dict[int, EventKind]
    stat_names: dict[int, str]
    stats: dict[str, Any]


def read_space(source: Source) -> tuple[list[Plane], dict[str, list[str]]]:
    """The planes of a file, and its own errors, warnings and host names.

    The events are left where they are: only their places are known.
    """
    planes: list[Plane] = []
    texts: dict[str, list[str]] = {"errors": [], "warnings": [], "hostnames": []}
    keys = dict(zip((2, 3, 4), texts, strict=True))
    for one in source.fields(Span(0, len(source.data))):
        if one.kind == BYTES and one.number == 1:
            planes.append(_plane(source, Span(one.value, one.end)))
        elif one.kind == BYTES and one.number in keys:
            texts[keys[one.number]].append(source.text(one.value, one.end))
    return planes, texts


def _plane(source: Source, span: Span) -> Plane:
    plane, stats = Plane("", [], {}, {}, {}), []
    for one in source.fields(span):
        if one.kind != BYTES:
            continue
        inner = Span(one.value, one.end)
        if one.number == 2:
            plane.name = source.text(*inner)
        elif one.number == 3:
            plane.lines.append(_line(source, inner))
        elif one.number == 4:
            key, kind = _entry(source, inner)
            plane.kinds[key] = _event_kind(source, kind)
        elif one.number == 5:
            key, name = _entry(source, inner)
            plane.stat_names[key] = _stat_name(source, name)
        elif one.number == 6:
            stats.append(inner)
    plane.stats = dict(read_stats(source, stats, plane.stat_names))
    return plane


def _line(source: Source, span: Span) -> Line:
    numbers, names, events = {1: 0, 3: 0}, {2: "", 11: ""}, list[int]()
    for one in _but_events(source, span, events):
        if one.kind == BYTES and one.number == 4:
            events += (one.value, one.end)
        elif one.kind == VARINT and one.number in numbers:
            numbers[one.number] = signed(one.value)
        elif one.kind == BYTES and one.number in names:
            names[one.number] = source.text(one.value, one.end)
    places = np.array(events, np.int64).reshape(-1, 2)
    return Line(numbers[1], names[11] or names[2], numbers[3], places[:, 0], places[:, 1])


def _but_events(source: Source, span: Span, events: list[int]) -> Iterator[Field]:
    """The fields of a line but for stretches of events, whose places go to `events`."""
    at = span.start
    while at < span.end:
        found, at = repeated(source.data, Span(at, span.end), 4)
        events += found
        for one in source.fields(Span(at, span.end)):
            yield one
            at = one.end
            if one.number != 4:
                break
        else:
            return


def _entry(source: Source, span: Span) -> tuple[int, Span]:
    """Key and value of a map's entry."""
    key, value = 0, Span(0, 0)
    for one in source.fields(span):
        if one.number == 1 and one.kind == VARINT:
            key = signed(one.value)
        elif one.number == 2 and one.kind == BYTES:
            value = Span(one.value, one.end)
    return key, value


def _event_kind(source: Source, span: Span) -> EventKind:
    kind = EventKind()
    for one in source.fields(span):
        if one.kind == BYTES and one.number == 2:
            kind.name = source.text(one.value, one.end)
        elif one.kind == BYTES and one.number == 4:
            kind.display_name = source.text(one.value, one.end)
        elif one.kind == BYTES and one.number == 5:
            kind.stats.append(Span(one.value, one.end))
    return kind


def _stat_name(source: Source, span: Span) -> str:
    names = [one for one in source.fields(span) if one.kind == BYTES and one.number == 2]
    return source.text(names[-1].value, names[-1].end) if names else ""


def read_stats(
    source: Source, spans: Iterable[Span], names: dict[int, str]
) -> Iterator[tuple[str, Any]]:
    """(name, value) of a few stats; a long string of bytes is its `Span` in the file."""
    for span in spans:
        name, value = "", None
        for one in source.fields(span):
            if one.number == 1 and one.kind == VARINT:
                name = stat_name(names, signed(one.value))
            elif (found := _value(source, one, names)) is not None:
                value = found
        if name and value is not None:
            yield name, value


def stat_name(names: dict[int, str], key: int) -> str:
    """The name of a stat, a made-up one where the file does not tell it."""
    return names.get(key) or f"stat {key}"


def _value(source: Source, one: Field, names: dict[int, str]) -> Any:
    """The value of a stat, if this field holds it."""
    match one.number, one.kind:
        case 2, k if k == FIXED64:
            return source.double(one.value)
        case 3, k if k == VARINT:
            return one.value
        case 4, k if k == VARINT:
            return signed(one.value)
        case 5, k if k == BYTES:
            return source.text(one.value, one.end)
        case 6, k if k == BYTES:
            return Span(one.value, one.end)
        case 7, k if k == VARINT:
            return names.get(signed(one.value), "")
        case 8, k if k == BYTES:
            return inflated(source.data[one.value : one.end])
    return None


def inflated(packed: bytes) -> str:
    """Text that was compressed with gzip, up to a mebibyte of it; empty where it is damaged."""
    try:
        raw = zlib.decompressobj(wbits=47).decompress(packed, _LONGEST_TEXT)
    except zlib.error:
        return ""
    return raw.decode("utf-8", "replace")
