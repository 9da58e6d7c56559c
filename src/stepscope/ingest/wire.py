"""The wire format of protocol buffers: one message after the other, or very many at once.

A profile is millions of messages of a few bytes each. `fields` walks through one message in plain
Python. `scan` takes the first field of all messages in one step of NumPy, then the second of those
that have one, and so on: as many steps as the longest message has fields, whatever their number.

Nothing is trusted: a field that would end behind its message is cut there, and a message that
cannot be read on is left at that place. Both are told to `Damage`.

Source: https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_WIDTH = {FIXED64: 8, FIXED32: 4}
_LEAST_KEY, _MOST_KEY = 8, 1 << 32  # field numbers have 29 bits, the way of writing has 3
_LONGEST_VARINT = 10
_PAD = 16
Offsets = NDArray[np.int64]
Octets = NDArray[np.uint8]


class Damage:
    """Counts the places where a message could not be read as its bytes promise."""

    def __init__(self) -> None:
        self.count = 0

    def tell(self, count: int = 1) -> None:
        """Count some more."""
        self.count += count


class Field(NamedTuple):
    """One field: a varint's value is in `value`; any other's bytes are `value` to `end`."""

    number: int
    kind: int
    value: int
    end: int


class Span(NamedTuple):
    """Where a message stands in the file."""

    start: int
    end: int


def fields(data: bytes, span: Span, damage: Damage) -> Iterator[Field]:
    """The fields of one message, in the order in which they stand.

    Args:
        data: the whole file.
        span: where the message stands in it.
        damage: told of what cannot be read.

    Example:
        >>> list(fields(b"\\x08\\x96\\x01", Span(0, 3), Damage()))
        [Field(number=1, kind=0, value=150, end=3)]
    """
    at, end = span
    while at < end:
        key, at = _varint(data, at, end)
        kind = key & 7
        if kind in (VARINT, BYTES):
            value, at = _varint(data, at, end)
        elif kind in _WIDTH:
            value = _WIDTH[kind]
        else:
            at = end + 1
        if not _LEAST_KEY <= key < _MOST_KEY or at > end:
            damage.tell()
            return
        if kind == VARINT:
            yield Field(key >> 3, kind, value, at)
            continue
        stop = min(at + value, end)
        if at + value > end:
            damage.tell()
            if kind != BYTES:
                return
        yield Field(key >> 3, kind, at, stop)
        at = stop


def repeated(data: bytes, span: Span, number: int) -> tuple[list[int], int]:
    """Where the fields of one number stand that begin a stretch of a message, as starts and ends.

    A thread is a message of a million events: this reads what `fields` does in a tenth of the time.

    Returns:
        Start and end of each, one after the other, and where the stretch ends: at another field, at
        one that does not fit, or with the message.
    """
    places: list[int] = []
    key, (at, end) = number << 3 | BYTES, span
    while at + 1 < end and data[at] == key:
        length, start = data[at + 1], at + 2
        if length >= 128:
            length, start = _varint(data, at + 1, end)
        if start + length > end:
            break
        at = start + length
        places += (start, at)
    return places, at


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """A varint and where it ends, behind `end` if it does not."""
    value = shift = 0
    while at < end and shift < 7 * _LONGEST_VARINT:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value & (2**64 - 1), at
    return 0, end + 1


def signed(value: int) -> int:
    """A varint as int64, in which negative numbers are written as their two's complement."""
    return value - 2**64 if value >= 2**63 else value


class Fields(NamedTuple):
    """The fields of many messages, shape (fields,) each; as `Field`, and whose each is.

    The first fields of all messages come first, then the second ones, and so on.

    Attributes:
        owner: index of the message.
        number: field number.
        kind: how it is written.
        value: a varint's value (its 64 bits as int64), else where the bytes start.
        end: where the field ends.
    """

    owner: Offsets
    number: Offsets
    kind: Offsets
    value: Offsets
    end: Offsets

    def of(self, number: int, kind: int) -> Fields:
        """Those of one number that are written as they should be, message by message."""
        rows = np.flatnonzero((self.number == number) & (self.kind == kind))
        rows = rows[np.argsort(self.owner[rows], kind="stable")]
        return Fields(*(column[rows] for column in self))

    def last(self, number: int, count: int, default: int = 0) -> Offsets:
        """A varint's value for each of `count` messages; the last counts, as the format says."""
        rows = np.flatnonzero((self.number == number) & (self.kind == VARINT))
        result = np.full(count, default, np.int64)
        result[self.owner[rows]] = self.value[rows]
        return result


def padded(data: bytes) -> Octets:
    """The file's bytes with some zeros behind them, so that no read needs to look where it ends."""
    return np.frombuffer(data + bytes(_PAD), np.uint8)


def scan(octets: Octets, start: Offsets, end: Offsets, damage: Damage) -> Fields:
    """Every field of many messages.

    Args:
        octets: the whole file, from `padded`.
        start: where each message starts, shape (messages,).
        end: where each ends, shape (messages,).
        damage: told of what cannot be read.

    Returns:
        The fields, as `Fields` has them.
    """
    at, live = start.astype(np.int64), np.flatnonzero(start < end)
    rounds = [Fields(*(np.zeros(0, np.int64) for _ in Fields._fields))]
    while len(live):
        found, sound = _next_fields(octets, live, at[live], end[live])
        damage.tell(int((~sound).sum()))
        found = Fields(*(column[sound] for column in found))
        rounds.append(found)
        at[found.owner] = found.end
        live = found.owner[found.end < end[found.owner]]
    return Fields(*(np.concatenate(column) for column in zip(*rounds, strict=True)))


def _next_fields(
    octets: Octets, owner: Offsets, at: Offsets, end: Offsets
) -> tuple[Fields, NDArray[np.bool_]]:
    """The field at `at` of each message, and whether it can be read."""
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


def _varints(octets: Octets, at: Offsets) -> tuple[Offsets, Offsets]:
    """The varint at each place and where it ends; beyond the file where it has no end."""
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


def doubles(octets: Octets, start: Offsets) -> NDArray[np.float64]:
    """The eight bytes at each place as a double."""
    parts = octets[start[:, None] + np.arange(8)]
    return np.ascontiguousarray(parts).view("<f8").reshape(-1)
