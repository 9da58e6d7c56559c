"""The wire format of protocol buffers: decodes one message, or very many at once.

A profile is millions of messages of a few bytes each. `fields` decodes one message in plain Python.
`scan` decodes the first field of all messages in one NumPy step, then the second of those that have
one, and so on; what long messages have after many steps is decoded one by one.

The input is not trusted: a field that would end after its message is cut there, and decoding of a
message stops at an invalid field. `Damage` counts both.

Source: https://protobuf.dev/programming-guides/encoding
"""

from collections.abc import Iterator
from mmap import mmap
from typing import NamedTuple

import numpy as np

from stepscope.base.arrays import Floats, Integers, Mask, Octets

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_WIDTH = {FIXED64: 8, FIXED32: 4}
_LEAST_KEY, _MOST_KEY = 8, 1 << 32  # field numbers have 29 bits, the way of writing has 3
_LONGEST_VARINT = 10  # bytes, of seven bits each: 64 bits
_MOST_STEPS = 100  # more than an instruction or an event has fields; a step takes as long as dozens of them
_PAD = 16  # bytes; a double or the first byte of a varint may be read after the end


class Damage:
    """Counts the messages that could not be decoded completely."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, count: int = 1) -> None:
        """Add to the count."""
        self.count += count


class Field(NamedTuple):
    """One field: a varint's value is in `value`; any other's bytes are `value` to `end`."""

    number: int
    kind: int
    value: int
    end: int


class Span(NamedTuple):
    """The place of a message in the file."""

    start: int
    end: int


def fields(data: bytes | mmap | memoryview, span: Span, damage: Damage) -> Iterator[Field]:
    """The fields of the message at a span of a file, in file order.

    Example:
        >>> list(fields(b"\\x08\\x96\\x01", Span(0, 3), Damage()))
        [Field(number=1, kind=0, value=150, end=3)]
    """
    at, end = span
    while at < end:
        key, at = varint(data, at, end)
        kind = key & 7
        if kind in (VARINT, BYTES):
            value, at = varint(data, at, end)
        elif kind in _WIDTH:
            value = _WIDTH[kind]
        else:
            at = end + 1
        if not _LEAST_KEY <= key < _MOST_KEY or at > end:
            damage.add()
            return
        if kind == VARINT:
            yield Field(key >> 3, kind, value, at)
            continue
        stop = min(at + value, end)
        if at + value > end:
            damage.add()
            if kind != BYTES:
                return
        yield Field(key >> 3, kind, at, stop)
        at = stop


def repeated(data: bytes, span: Span, number: int) -> tuple[list[int], int]:
    """The places of consecutive fields of one number at the start of a span.

    A thread is a message of a million events: this takes a tenth of the time of `fields`. Start and
    end of each field alternate; then the end of the run: at a field of another number, at one that
    does not fit, or at the end of the span.
    """
    places: list[int] = []
    key, (at, end) = number << 3 | BYTES, span
    while at + 1 < end and data[at] == key:
        length, start = data[at + 1], at + 2
        if length >= 128:
            length, start = varint(data, at + 1, end)
        if start + length > end:
            break
        at = start + length
        places += (start, at)
    return places, at


def varint(data: bytes | mmap | memoryview, at: int, end: int) -> tuple[int, int]:
    """A varint and its end, which is after `end` if the varint is incomplete, or of more than 64 bits."""
    value = shift = 0
    while at < end and shift < 7 * _LONGEST_VARINT:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value & (2**64 - 1), at
    return 0, end + 1


def signed(value: int) -> int:
    """A varint as int64, where negative numbers are written as their two's complement."""
    return value - 2**64 if value >= 2**63 else value


def int32(value: int) -> int:
    """The value of an int32 field whose varint may be longer: the format keeps the low 32 bits."""
    return (value + 2**31) % 2**32 - 2**31


class Fields(NamedTuple):
    """The fields of many messages, shape (fields,) each.

    The first fields of all messages come first, then the second fields, and so on.
    """

    owner: Integers  # index of the message
    number: Integers  # field number
    kind: Integers  # wire type
    value: Integers  # a varint's value (its 64 bits as int64), else the start of the bytes
    end: Integers  # end of the field

    def of(self, number: int, kind: int) -> "Fields":
        """The fields of one number and wire type, message by message."""
        rows = np.flatnonzero((self.number == number) & (self.kind == kind))
        rows = rows[np.argsort(self.owner[rows], kind="stable")]
        return Fields(*(column[rows] for column in self))

    def last(self, number: int, count: int, default: int = 0) -> Integers:
        """A varint's value for each of `count` messages; the last one counts, per the format."""
        rows = np.flatnonzero((self.number == number) & (self.kind == VARINT))
        result = np.full(count, default, np.int64)
        result[self.owner[rows]] = self.value[rows]
        return result


def padded(data: bytes) -> Octets:
    """The file's bytes followed by zeros, so that reads need no bounds check."""
    return np.frombuffer(data + bytes(_PAD), np.uint8)


def scan(octets: Octets, start: Integers, end: Integers, damage: Damage) -> Fields:
    """Every field of many messages, at `start` to `end` of a whole file from `padded`."""
    at, live = start.astype(np.int64), np.flatnonzero(start < end)
    rounds = [Fields(*(np.zeros(0, np.int64) for _ in Fields._fields))]
    while len(live) and len(rounds) <= _MOST_STEPS:
        found, sound = _next_fields(octets, live, at[live], end[live])
        damage.add(int((~sound).sum()))
        found = Fields(*(column[sound] for column in found))
        rounds.append(found)
        at[found.owner] = found.end
        live = found.owner[found.end < end[found.owner]]
    rest = [
        (owner, item.number, item.kind, signed(item.value), item.end)
        for owner in live.tolist()
        for item in fields(octets.data, Span(int(at[owner]), int(end[owner])), damage)
    ]
    rounds.append(Fields(*np.array(rest, np.int64).reshape(-1, len(Fields._fields)).T))
    return Fields(*(np.concatenate(column) for column in zip(*rounds, strict=True)))


def _next_fields(octets: Octets, owner: Integers, at: Integers, end: Integers) -> tuple[Fields, Mask]:
    """The field at `at` of each message, and whether it is valid."""
    key, at = _varints(octets, at)
    kind, number = key & 7, key >> 3
    at = np.minimum(at, end)
    value, after = _varints(octets, at)
    is_varint, is_bytes = kind == VARINT, kind == BYTES
    width = np.where(is_bytes, value, np.where(kind == FIXED64, 8, 4))
    begin = np.where(is_bytes, after, at)
    room = (width >= 0) & (width <= end - begin)
    stop = np.where(is_varint, after, begin + np.where(room, width, 0))
    known = (kind <= BYTES) | (kind == FIXED32)
    known &= (key >= _LEAST_KEY) & (key < _MOST_KEY)
    sound = known & (stop <= end) & (room | is_varint)
    return Fields(owner, number, kind, np.where(is_varint, value, begin), stop), sound


def _varints(octets: Octets, at: Integers) -> tuple[Integers, Integers]:
    """The varint at each place and its end; an incomplete varint ends after the file."""
    byte = octets[at]
    value, after = (byte & 127).astype(np.int64), at + 1
    more = np.flatnonzero(byte >= 128)
    for place in range(1, _LONGEST_VARINT):
        if not len(more):
            break
        byte = octets[np.minimum(at[more] + place, len(octets) - 1)]
        value[more] |= (byte & 127).astype(np.int64) << (7 * place)
        after[more] += 1
        more = more[byte >= 128]
    after[more] = len(octets) + 1
    return value, after


def doubles(octets: Octets, start: Integers) -> Floats:
    """The eight bytes at each place as a double."""
    return np.ascontiguousarray(octets[start[:, None] + np.arange(8)]).view("<f8").reshape(-1)
