"""Reader of Perfetto's protobuf traces (`.pftrace`): its track events, as trace events of JSON.

Packets form sequences. What a packet interns, its sequence's clocks and its default track hold until
the sequence clears its state. Messages of one kind are decoded all at once.

Source: perfetto/trace/*.proto (https://github.com/google/perfetto), whose field numbers are the ones
below.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from functools import lru_cache
from operator import itemgetter
from tempfile import TemporaryFile
from typing import Any, BinaryIO, NamedTuple

import msgspec
import numpy as np

from stepscope.base.arrays import Integers
from stepscope.errors import IngestError
from stepscope.read.byte_stream import CHUNK_BYTES, MOST_EXPANSION, Progress, chunks
from stepscope.read.chrome.trace_events import read_parts
from stepscope.read.shared import MOST_LEVELS, WarningLog
from stepscope.read.xplane.protobuf import (
    BYTES,
    FIXED64,
    VARINT,
    Damage,
    Fields,
    Span,
    fields,
    int32,
    padded,
    repeated,
    scan,
    signed,
)
from stepscope.trace.builder import build
from stepscope.trace.trace import Trace

_PACKET, _COMPRESSED, _INTERNED, _EVENT, _DEFAULTS, _DESCRIPTOR, _SNAPSHOT = 1, 50, 12, 11, 59, 60, 6
_READ = {_COMPRESSED, _INTERNED, _EVENT, _DEFAULTS, _DESCRIPTOR, _SNAPSHOT}
_ABOUT_THE_TRACE = {33, 36, 35, 45, 76, 89}  # configuration, synchronization, statistics
_CATEGORIES, _NAMES, _ARGUMENT_NAMES, _TEXTS = 1, 2, 3, 29  # of interned data
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4  # types of events
_BOOT, _FIRST_CUSTOM = 6, 64  # clocks
_AT_ONCE = 1 << 16  # events that are decoded at a time; some 100 MB of Python's objects
# A track event has 12 bytes: its time, its sequence and its type. Millions of less take gigabytes.
_LEAST_BYTES, _CHECKED = 8, 1 << 20
_HEAD_PACKETS = 4  # of a file's first bytes, by which it is known
_FLOWS = ((47, FIXED64), (48, FIXED64), (36, VARINT), (42, VARINT))


def is_perfetto(head: bytes) -> bool:
    """Whether a file's first bytes are packets with a time, a sequence or a track."""
    damage = Damage()
    places, _ = repeated(head, Span(0, len(head)), _PACKET)
    packets = [Span(*places[at : at + 2]) for at in range(0, min(len(places), 2 * _HEAD_PACKETS), 2)]
    numbers = {field.number for packet in packets for field in fields(head, packet, damage)}
    return bool(numbers & {8, 10, _DESCRIPTOR}) and not damage.count


def read_perfetto(file: BinaryIO, gzipped: bool, progress: Progress) -> Trace:
    """Read a Perfetto trace, as every `Reader` does."""
    log, damage = WarningLog(), Damage()
    with closing(chunks(file, gzipped, log, progress)) as pieces:
        data = b"".join(pieces)
    packets = _Packets(_unpacked(data, damage), damage, log)
    with TemporaryFile() as text:  # takes more room than the trace
        text.write(b'{"traceEvents":[')
        for number, event in enumerate(packets.trace_events()):
            text.write(f",\n{event}".encode() if number else event.encode())
        text.write(b"]}")
        text.seek(0)
        log("damaged_message", "a message is damaged or truncated; read up to the damage", damage.count)
        parts = read_parts(text, False, lambda size: None)
    parts.warnings = [*log.rows(), *parts.warnings]
    return build(parts)


def _places(data: bytes, damage: Damage) -> Integers:
    """The start and end of each packet, shape (packets, 2)."""
    places, at = array("q"), 0
    while at < len(data):
        run, at = repeated(data, Span(at, min(at + CHUNK_BYTES, len(data))), _PACKET)
        places.extend(run)
        if len(places) > _CHECKED and at < _LEAST_BYTES * len(places) // 2:
            raise IngestError("the file holds no trace, but packets of next to nothing")
        field = next(fields(data, Span(at, len(data)), damage), None)
        if field is None:
            break
        places.extend((field.value, field.end) if (field.number, field.kind) == (_PACKET, BYTES) else ())
        at = field.end
    return np.array(places, np.int64).reshape(-1, 2)


def _unpacked(data: bytes, damage: Damage) -> bytes:
    """The trace with the packets that some of its packets hold compressed."""
    places = _places(data, Damage())
    packed = scan(padded(data), places[:, 0], places[:, 1], Damage()).of(_COMPRESSED, BYTES)
    return data + b"".join(_inflated(data[at:end]) for at, end in _spans(packed))


def _inflated(packed: bytes) -> bytes:
    try:
        return zlib.decompressobj().decompress(packed, MOST_EXPANSION * len(packed))
    except zlib.error:
        return b""


def _spans(found: Fields) -> Iterator[Span]:
    return map(Span, found.value.tolist(), found.end.tolist())


class _Clock(NamedTuple):
    """A clock of a sequence: its reading at a nanosecond of the boot clock, and its unit."""

    start_ns: int = 0
    reading: int = 0
    unit_ns: int = 1
    is_incremental: bool = False  # its times are since the packet before


class _Message(NamedTuple):
    numbers: dict[int, int]
    places: dict[int, Span]


class _Packets:
    def __init__(self, data: bytes, damage: Damage, log: WarningLog) -> None:
        self.data, self.octets, self.damage, self.log = data, padded(data), damage, log
        places = _places(data, damage)
        self.fields, self.count = self._scan(places[:, 0], places[:, 1]), len(places)
        others = self.fields.number[self.fields.kind == BYTES]
        skipped = np.isin(others, [*_READ, *_ABOUT_THE_TRACE], invert=True)
        log("unread_packet", "skipped packets that are no track events", int(skipped.sum()))
        self.state = self._states()
        self.clocks: dict[tuple[int, int], _Clock] = {}  # by state and number
        self.builtin: dict[int, _Clock] = {}  # clocks of the machine, by number
        self.default_track, self.default_clock = defaultdict[int, int](int), defaultdict[int, int](int)
        self._read_snapshots()
        self._read_defaults()
        self.interned = self._interned()
        self.tracks = _Tracks(self._of(_DESCRIPTOR), self)

    def _scan(self, start: Integers, end: Integers) -> Fields:
        return scan(self.octets, start, end, self.damage)

    def _of(self, number: int) -> Iterator[tuple[int, Span]]:
        """State and place of each message of a kind that few packets hold."""
        found = self.fields.of(number, BYTES)
        return zip(self.state[found.owner].tolist(), _spans(found), strict=True)

    def inner(self, span: Span) -> _Message:
        """The numbers, and the places of bytes, of one message; the last of each field counts."""
        message = _Message({}, {})
        for item in fields(self.data, span, self.damage):
            if item.kind == VARINT:
                message.numbers[item.number] = signed(item.value)
            elif item.kind == BYTES:
                message.places[item.number] = Span(item.value, item.end)
        return message

    def text(self, span: Span) -> str:
        return self.data[span.start : span.end].decode("utf-8", "replace")

    def _states(self) -> Integers:
        """For each packet the state of its sequence that it belongs to."""
        sequence = self.fields.last(10, self.count)
        clears = (self.fields.last(13, self.count) & 1) | self.fields.last(41, self.count)
        order = np.argsort(sequence, kind="stable")
        is_new = (clears[order] != 0) | (np.diff(sequence[order], prepend=-1) != 0)
        state = np.zeros(self.count, np.int64)
        state[order] = np.cumsum(is_new)
        return state

    def _read_snapshots(self) -> None:
        for state, span in self._of(_SNAPSHOT):
            inner = [
                self.inner(Span(item.value, item.end)).numbers
                for item in fields(self.data, span, self.damage)
                if (item.number, item.kind) == (1, BYTES)
            ]
            times = {clock.get(1, 0): clock.get(2, 0) for clock in inner}
            boot = times.get(_BOOT, next((at for number, at in times.items() if number < _FIRST_CUSTOM), 0))
            for clock in inner:
                known = _Clock(boot, clock.get(2, 0), clock.get(4, 0) or 1, clock.get(3, 0) != 0)
                if (number := clock.get(1, 0)) < _FIRST_CUSTOM:
                    self.builtin.setdefault(number, known)
                else:
                    self.clocks.setdefault((state, number), known)

    def _read_defaults(self) -> None:
        for state, span in self._of(_DEFAULTS):
            numbers, places = self.inner(span)
            self.default_clock[state] = numbers.get(58, 0)
            if _EVENT in places:
                self.default_track[state] = self.inner(places[_EVENT]).numbers.get(11, 0)

    def _times(self) -> Integers:
        """The time of each packet on the boot clock, in ns."""
        number, reading = self.fields.last(58, self.count), self.fields.last(8, self.count)
        keys, key = np.unique(self.state * 256 + np.clip(number, 0, 255), return_inverse=True)
        clocks = [self._clock(*divmod(code, 256)) for code in keys.tolist()]
        start, base, unit, is_incremental = (np.array(column)[key] for column in zip(*clocks, strict=True))
        steps = np.where(is_incremental, reading * unit, 0)
        order = np.argsort(key, kind="stable")
        total = np.cumsum(steps[order])
        first = np.flatnonzero(np.diff(key[order], prepend=-1))
        passed = np.empty(self.count, np.int64)
        passed[order] = total - (total - steps[order])[first][key[order]]
        return start + np.where(is_incremental, passed, (reading - base) * unit)

    def _clock(self, state: int, number: int) -> _Clock:
        number = number or self.default_clock[state] or _BOOT
        if number < _FIRST_CUSTOM:
            return self.builtin.get(number, _Clock())
        return self.clocks.get((state, number), _Clock())

    def _interned(self) -> dict[tuple[int, int, int], str]:
        """Texts by kind, state and number."""
        holders = self.fields.of(_INTERNED, BYTES)
        inner = self._scan(holders.value, holders.end)
        result = {}
        for kind in (_CATEGORIES, _NAMES, _ARGUMENT_NAMES, _TEXTS):
            entries = inner.of(kind, BYTES)
            states = self.state[holders.owner[entries.owner]].tolist()
            for state, span in zip(states, _spans(entries), strict=True):
                numbers, places = self.inner(span)
                result[kind, state, numbers.get(1, 0)] = self.text(places.get(2, Span(0, 0)))
        return result

    def trace_events(self) -> Iterator[str]:
        """Every event as JSON, some at a time, then the names of processes and threads."""
        holders, flows = self.fields.of(_EVENT, BYTES), list[tuple[int, str, int]]()
        times = self._times()[holders.owner] if len(holders.owner) else holders.owner
        for first in range(0, len(times), _AT_ONCE):
            rows = slice(first, first + _AT_ONCE)
            events = self._scan(holders.value[rows], holders.end[rows])
            states = self.state[holders.owner[rows]]
            given = zip(events.last(11, len(states)).tolist(), states.tolist(), strict=True)
            tracks = [track or self.default_track[state] for track, state in given]
            places = [f'{self.tracks.place(track)},"ts":' for track in tracks]
            ns = times[rows].tolist()
            yield from self._slices(events, states, tracks, places, ns)
            flows += self._flow_ends(events, places, ns)
        yield from self.tracks.labels()
        begun: set[int] = set()
        for at, place, flow in sorted(flows, key=itemgetter(0)):
            what = f'"ph":"{"t" if flow in begun else "s"}","cat":"flow","name":"flow","id":"{flow}"'
            begun.add(flow)
            yield f"{{{what},{place}{_us(at)}}}"

    def _slices(
        self, events: Fields, states: Integers, tracks: list[int], places: list[str], ns: list[int]
    ) -> Iterator[str]:
        names = self._texts(events, states, 23, 10, _NAMES)
        categories = self._texts(events, states, 22, 3, _CATEGORIES)
        arguments, values = self._arguments(events, states), self._values(events)
        kinds = events.last(9, len(states))
        unread = int(np.isin(kinds, [_BEGIN, _END, _INSTANT, _COUNTER], invert=True).sum())
        self.log("unread_event", "skipped track events of a type that is not read", unread)
        for at, kind in enumerate(kinds.tolist()):
            where = f"{places[at]}{_us(ns[at])}"
            if kind in (_BEGIN, _END, _INSTANT):
                what = f'"cat":{_quoted(categories.get(at, ""))},"name":{_quoted(names.get(at, ""))}'
                yield f'{{"ph":"{"BEi"[kind - 1]}",{what},{where}{_args(arguments.get(at, {}))}}}'
            elif kind == _COUNTER:
                name = _quoted(names.get(at) or self.tracks.names.get(tracks[at], ""))
                yield f'{{"ph":"C","name":{name},{where}{_args({"value": values.get(at, 0)})}}}'

    def _texts(
        self, events: Fields, states: Integers, number: int, interned: int, kind: int
    ) -> dict[int, str]:
        """A text of each event that has one, written out or interned."""
        written = events.of(number, BYTES)
        result = dict(zip(written.owner.tolist(), map(self.text, _spans(written)), strict=True))
        rows = events.of(interned, VARINT)
        for owner, state, value in zip(
            rows.owner.tolist(), states[rows.owner].tolist(), rows.value.tolist(), strict=True
        ):
            result[owner] = self.interned.get((kind, state, value), "")
        return result

    def _values(self, events: Fields) -> dict[int, float]:
        whole, parts = events.of(30, VARINT), events.of(44, FIXED64)
        values = dict(zip(whole.owner.tolist(), whole.value.tolist(), strict=True))
        return values | dict(zip(parts.owner.tolist(), map(self._double, parts.value.tolist()), strict=True))

    def _double(self, at: int) -> float:
        return float(struct.unpack_from("<d", self.data, at)[0])

    def _arguments(self, events: Fields, states: Integers) -> dict[int, dict[str, Any]]:
        found = events.of(4, BYTES)
        result: dict[int, dict[str, Any]] = defaultdict(dict)
        names, values = self._annotations(found, states[found.owner])
        for owner, name, value in zip(found.owner.tolist(), names, values, strict=True):
            result[owner][name] = value
        return result

    def _annotations(self, found: Fields, states: Integers, level: int = 0) -> tuple[list[str], list[Any]]:
        """The names and values of annotations; those inside others come from the next level."""
        inner = self._scan(found.value, found.end)
        names, state = [""] * len(states), states.tolist()
        values: list[Any] = [None] * len(states)
        for owner, number, kind, value, end in zip(*(column.tolist() for column in inner), strict=True):
            match number, kind:
                case 10, 2:
                    names[owner] = self.text(Span(value, end))
                case 1, 0:
                    names[owner] = self.interned.get((_ARGUMENT_NAMES, state[owner], value), "")
                case 2, 0:
                    values[owner] = value != 0
                case ((3 | 7), 0):
                    values[owner] = value % 2**64
                case 4, 0:
                    values[owner] = value
                case 5, 1:
                    values[owner] = self._double(value)
                case ((6 | 9), 2):
                    values[owner] = self.text(Span(value, end))
                case 17, 0:
                    values[owner] = self.interned.get((_TEXTS, state[owner], value), "")
        for number in (11, 12):  # the entries of a dict, the values of an array
            rows = inner.of(number, BYTES)
            if len(rows.owner) and level < MOST_LEVELS:
                entries: dict[int, dict[Any, Any]] = defaultdict(dict)
                nested = self._annotations(rows, states[rows.owner], level + 1)
                for owner, name, value in zip(rows.owner.tolist(), *nested, strict=True):
                    entries[owner][name if number == 11 else len(entries[owner])] = value
                for owner, entry in entries.items():
                    values[owner] = entry if number == 11 else list(entry.values())
        return names, values

    def _flow_ends(self, events: Fields, places: list[str], ns: list[int]) -> Iterator[tuple[int, str, int]]:
        """Time, place and number of each end of a flow."""
        for number, kind in _FLOWS:
            rows = events.of(number, kind)
            for owner, value in zip(rows.owner.tolist(), rows.value.tolist(), strict=True):
                flow = value if kind == VARINT else int.from_bytes(self.data[value : value + 8], "little")
                yield ns[owner], places[owner], flow


class _Tracks:
    """The process and thread of each track; a track without a thread is a thread of its own."""

    def __init__(self, descriptors: Iterator[tuple[int, Span]], packets: _Packets) -> None:
        self.names: dict[int, str] = {}
        self._parents: dict[int, int] = {}
        self._threads: dict[int, int] = {}
        self._processes: dict[int, int] = {}
        self._process_names: dict[int, str] = {}
        self._places: dict[int, str] = {}
        for _, span in descriptors:
            numbers, places = packets.inner(span)
            track, thread, process = numbers.get(1, 0), _Message({}, {}), _Message({}, {})
            self._parents[track] = numbers.get(5, 0)
            if 4 in places:
                thread = packets.inner(places[4])
                self._threads[track] = thread.numbers.get(2, 0)
                self._processes[track] = thread.numbers.get(1, 0)
            if 3 in places:
                process = packets.inner(places[3])
                self._processes[track] = pid = int32(process.numbers.get(1, 0))
                self._process_names[pid] = packets.text(process.places.get(6, places.get(2, Span(0, 0))))
            name = thread.places.get(5, places.get(2, places.get(10, Span(0, 0))))
            self.names[track] = packets.text(name) or self.names.get(track, "")

    def place(self, track: int) -> str:
        """The `pid` and `tid` of events on a track, as JSON."""
        if track not in self._places:
            thread = self._threads.get(track, f'"track {track % 2**64}"')
            self._places[track] = f'"pid":{self._process(track)},"tid":{thread}'
        return self._places[track]

    def _process(self, track: int) -> int:
        for _ in range(MOST_LEVELS):
            if track in self._processes or track not in self._parents:
                break
            track = self._parents[track]
        return self._processes.get(track, 0)

    def labels(self) -> Iterator[str]:
        """Metadata events that name the processes, and the tracks with events."""
        for pid, name in self._process_names.items():
            yield f'{{"ph":"M","name":"process_name","pid":{pid},"tid":0{_args({"name": name})}}}'
        for track, place in self._places.items():
            if label := self.names.get(track):
                yield f'{{"ph":"M","name":"thread_name",{place}{_args({"name": label})}}}'


@lru_cache(maxsize=1 << 16)
def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03}"


def _args(arguments: dict[str, Any]) -> str:
    return f',"args":{msgspec.json.encode(arguments).decode()}' if arguments else ""
