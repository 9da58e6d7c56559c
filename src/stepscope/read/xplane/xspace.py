"""The messages of an XSpace: planes, their lines, and the names of their events and stats.

Source: xplane.proto (https://github.com/openxla/xla, third_party/tsl/tsl/profiler/protobuf), whose
field numbers are the ones below.
"""

import re
import zlib
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from stepscope.base.arrays import Integers
from stepscope.errors import IngestError
from stepscope.read.byte_stream import most_expanded
from stepscope.read.shared import WarningLog
from stepscope.read.xplane import protobuf
from stepscope.read.xplane.protobuf import (
    BYTES,
    VARINT,
    Damage,
    Field,
    Span,
    doubles,
    fields,
    padded,
    repeated,
    signed,
    varint,
)

Shared = TypeVar("Shared", bound=Sized)
_LONGEST_TEXT = 1 << 20  # bytes
_MOST_PLANES = 10_000  # a few for each device of a host; each costs 0.1 ms
_FEW_STEPS = 2_000_000  # a second; programs take one for every ten of their bytes, and may take one for each
_STEPS_OF_LINE = range(20)  # a line takes as long as 20, measured
_OPERATION_TYPE = re.compile(r"^[A-Z_]\w*$")
# The first plane, with or without an id, and the start of its name, since Perfetto's traces begin like it.
_FIRST_PLANE = re.compile(
    rb"^\x0a[\x80-\xff]{0,9}[\x00-\x7f](?:\x08[\x80-\xff]{0,9}[\x00-\x7f])?"
    rb"\x12.{1,2}(?:[/#]|Host CPUs|Syscalls|Task Env)",
    re.DOTALL,
)


def is_space(head: bytes) -> bool:
    """Whether a file's first bytes look like an XSpace."""
    return bool(_FIRST_PLANE.match(head))


@dataclass
class XSpaceFile:
    """The bytes of one file, and the warnings found while reading them."""

    data: bytes
    log: WarningLog
    damage: Damage = field(default_factory=Damage)

    def __post_init__(self) -> None:
        self.octets = padded(self.data)
        self.left_bytes = most_expanded(len(self.data)) // 2  # of arguments as JSON, which are held twice
        self.left_steps = _FEW_STEPS + len(self.data) // 4

    def spend(self, shared: Shared) -> Shared:
        """What instructions share, counted for each that looks through it: all must not take the square."""
        self.left_steps -= len(shared)
        if self.left_steps < 0:
            raise IngestError("the XLA profile repeats parts as no recorder does")
        return shared

    def fields(self, span: Span) -> Iterator[Field]:
        """The fields of the message at `span`."""
        return fields(self.data, span, self.damage)

    def text(self, start: int, end: int) -> str:
        """Bytes as text; invalid UTF-8 becomes the replacement character."""
        return self.decoded(self.data[start:end])

    def decoded(self, raw: bytes) -> str:
        """Decode bytes like `text`, at most a mebibyte of them."""
        raw = raw[:_LONGEST_TEXT]
        text = raw.decode("utf-8", "replace")
        if "\N{REPLACEMENT CHARACTER}" in text and text.encode() != raw:
            self.log("invalid_text", "some text is not valid Unicode; invalid characters are shown as �")
        return text

    def inner(self, span: Span, number: int) -> list[Span]:
        """The submessages of the message at `span` with one field number."""
        return [
            Span(item.value, item.end)
            for item in self.fields(span)
            if item.number == number and item.kind == BYTES
        ]

    def last_text(self, span: Span, number: int) -> str:
        """A text field of the message at `span`; the last one counts, empty if there is none."""
        inner = self.inner(span, number)
        return self.text(*inner[-1]) if inner else ""

    def number(self, span: Span, number: int, default: int = 0) -> int:
        """An integer field of the message at `span`; the last one counts."""
        found = [
            signed(item.value) for item in self.fields(span) if item.number == number and item.kind == VARINT
        ]
        return found[-1] if found else default

    def numbers(self, span: Span, number: int) -> list[int]:
        """A repeated integer field of the message at `span`, packed or not."""
        found: list[int] = []
        for item in self.fields(span):
            if item.number == number and item.kind == BYTES:
                found += self.packed(item.value, item.end)
            elif item.number == number and item.kind == VARINT:
                found.append(item.value)
        return found

    def packed(self, start: int, end: int) -> Iterator[int]:
        """The integers of a packed field, up to one that is damaged."""
        while start < end:
            value, start = varint(self.data, start, end)
            if start <= end:
                yield value

    def double(self, start: int) -> float:
        """The eight bytes at `start` as a double."""
        return float(doubles(self.octets, np.array([start]))[0])


@dataclass
class PlaneLine:
    """One timeline of a plane: its events are at `starts` to `ends` in the file."""

    id: int
    name: str
    timestamp_ns: int
    starts: Integers
    ends: Integers


@dataclass
class EventKind:
    """The names and the places of the stats that all events of one metadata id share."""

    name: str = ""
    display_name: str = ""
    stats: list[Span] = field(default_factory=list)

    @property
    def operation(self) -> str:
        """The name of an operation of TensorFlow, as in `adam/Sub_2:Sub`; else empty."""
        name, _, kind = self.name.rpartition(":")
        return name if _OPERATION_TYPE.match(kind) and self.display_name == kind else ""


@dataclass
class Plane:
    """One plane: a device, the host, or a container of shared data."""

    name: str
    lines: list[PlaneLine]
    kinds: dict[int, EventKind]
    stat_names: dict[int, str]
    stats: dict[str, Any]


def read_space(source: XSpaceFile) -> tuple[list[Plane], dict[str, list[str]]]:
    """The planes of a file, and its own errors, warnings and host names.

    Events are not decoded, only located.
    """
    planes: list[Plane] = []
    texts: dict[str, list[str]] = {"errors": [], "warnings": [], "hostnames": []}
    keys = dict(zip((2, 3, 4), texts, strict=True))
    for item in source.fields(Span(0, len(source.data))):
        if item.kind == BYTES and item.number == 1:
            planes.append(_plane(source, Span(item.value, item.end)))
            if len(planes) > _MOST_PLANES:
                raise IngestError(f"the profile has more than {_MOST_PLANES:,} planes; it is damaged")
        elif item.kind == BYTES and item.number in keys:
            texts[keys[item.number]].append(source.text(item.value, item.end))
    return planes, texts


def _plane(source: XSpaceFile, span: Span) -> Plane:
    plane, stats = Plane("", [], {}, {}, {}), []
    for item in source.fields(span):
        if item.kind != BYTES:
            continue
        inner = Span(item.value, item.end)
        if item.number == 2:
            plane.name = source.text(*inner)
        elif item.number == 3:
            source.spend(_STEPS_OF_LINE)
            plane.lines.append(_line(source, inner))
        elif item.number == 4:
            key, kind = _entry(source, inner)
            plane.kinds[key] = _event_kind(source, kind)
        elif item.number == 5:
            key, name = _entry(source, inner)
            plane.stat_names[key] = source.last_text(name, 2)
        elif item.number == 6:
            stats.append(inner)
    plane.stats = dict(read_stats(source, stats, plane.stat_names))
    return plane


def _line(source: XSpaceFile, span: Span) -> PlaneLine:
    numbers, names, events = {1: 0, 3: 0}, {2: "", 11: ""}, list[int]()
    for item in _but_events(source, span, events):
        if item.kind == BYTES and item.number == 4:
            events += (item.value, item.end)
        elif item.kind == VARINT and item.number in numbers:
            numbers[item.number] = signed(item.value)
        elif item.kind == BYTES and item.number in names:
            names[item.number] = source.text(item.value, item.end)
    places = np.array(events, np.int64).reshape(-1, 2)
    return PlaneLine(numbers[1], names[11] or names[2], numbers[3], places[:, 0], places[:, 1])


def _but_events(source: XSpaceFile, span: Span, events: list[int]) -> Iterator[Field]:
    """The fields of a line, except runs of events, whose places are added to `events`."""
    at = span.start
    while at < span.end:
        found, at = repeated(source.data, Span(at, span.end), 4)
        events += found
        for item in source.fields(Span(at, span.end)):
            yield item
            at = item.end
            if item.number != 4:
                break
        else:
            return


def _entry(source: XSpaceFile, span: Span) -> tuple[int, Span]:
    key, value = 0, Span(0, 0)
    for item in source.fields(span):
        if item.number == 1 and item.kind == VARINT:
            key = signed(item.value)
        elif item.number == 2 and item.kind == BYTES:
            value = Span(item.value, item.end)
    return key, value


def _event_kind(source: XSpaceFile, span: Span) -> EventKind:
    kind = EventKind()
    for item in source.fields(span):
        if item.kind == BYTES and item.number == 2:
            kind.name = source.text(item.value, item.end)
        elif item.kind == BYTES and item.number == 4:
            kind.display_name = source.text(item.value, item.end)
        elif item.kind == BYTES and item.number == 5:
            kind.stats.append(Span(item.value, item.end))
    return kind


def read_stats(source: XSpaceFile, spans: Iterable[Span], names: dict[int, str]) -> Iterator[tuple[str, Any]]:
    """(name, value) of a few stats; a long string of bytes is its `Span` in the file."""
    for span in spans:
        name, value = "", None
        for item in source.fields(span):
            if item.number == 1 and item.kind == VARINT:
                name = stat_name(names, signed(item.value))
            elif (found := _value(source, item, names)) is not None:
                value = found
        if name and value is not None:
            yield name, value


def stat_name(names: dict[int, str], key: int) -> str:
    """The name of a stat, or `stat N` if the file has none."""
    return names.get(key) or f"stat {key}"


def _value(source: XSpaceFile, item: Field, names: dict[int, str]) -> Any:
    """The value of a stat, if this field holds it."""
    match item.kind, item.number:
        case protobuf.FIXED64, 2:
            return source.double(item.value)
        case protobuf.VARINT, 3:
            return item.value
        case protobuf.VARINT, 4:
            return signed(item.value)
        case protobuf.VARINT, 7:
            return names.get(signed(item.value), "")
        case protobuf.BYTES, 5:
            return source.text(item.value, item.end)
        case protobuf.BYTES, 6:
            return Span(item.value, item.end)
        case protobuf.BYTES, 8:
            return inflated(source.data[item.value : item.end])
    return None


def inflated(packed: bytes) -> str:
    """Text that was compressed with gzip, at most a mebibyte of it; empty if it is damaged."""
    try:
        raw = zlib.decompressobj(wbits=47).decompress(packed, _LONGEST_TEXT)
    except zlib.error:
        return ""
    return raw.decode("utf-8", "replace")
