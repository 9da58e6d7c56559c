"""Turns records into columns chunk by chunk, so that only one chunk is held as objects."""

from __future__ import annotations

from array import array
from functools import cached_property
from itertools import compress, islice
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw, Struct
from numpy.typing import NDArray

from stepscope.arrays import Array, Codes32, Floats, Ids32
from stepscope.ingest.chrome.records import Record
from stepscope.ingest.chrome.timestamps import nanoseconds
from stepscope.trace.arguments import Arguments, Block, parse
from stepscope.trace.interner import Interner

LABELS = ("process_name", "thread_name", "process_labels")


class KnownArguments(Struct, gc=False):
    """The arguments that become columns; `Arguments` keeps every argument as well."""

    correlation: int = -1
    sequence: int = msgspec.field(default=-1, name="Sequence number")
    forward_thread: int = msgspec.field(default=-1, name="Fwd thread id")
    bytes: int = -1
    allocation: int = msgspec.field(default=0, name="Bytes")
    address: int = msgspec.field(default=-1, name="Addr")
    device_type: int = msgspec.field(default=0, name="Device Type")
    device_id: int = msgspec.field(default=-1, name="Device Id")
    allocated: int = msgspec.field(default=-1, name="Total Allocated")
    reserved: int = msgspec.field(default=-1, name="Total Reserved")


_KNOWN = msgspec.json.Decoder(list[KnownArguments | None])
_ONE_KNOWN = msgspec.json.Decoder(KnownArguments | None)
_FIELDS = dict(
    zip(KnownArguments.__struct_fields__, KnownArguments.__struct_encode_fields__, strict=True)
)
_DEFAULTS = KnownArguments()
_LONG_BYTES = 150
_OF_MEMORY = {"allocation", "address", "device_type", "device_id", "allocated", "reserved"}
_PLACE = attrgetter("ph", "cat", "pid", "tid")


class RecordColumns:
    """The columns of every event read so far, except metadata events, in file order.

    Attributes:
        phases: (phase, category) pairs by code.
        names: event names by code.
        tracks: (pid, tid) by code.
        identities: ids of arrows and async events by code.
        labels: value of a metadata event by (pid, tid, its name).
    """

    def __init__(self) -> None:
        self.phases: Interner[tuple[str, str]] = Interner()
        self.names: Interner[str] = Interner()
        self.tracks: Interner[tuple[Any, Any]] = Interner()
        self.identities: Interner[Any] = Interner()
        self.labels: dict[tuple[Any, Any, str], str] = {}
        self._chunks: list[dict[str, Array]] = []
        self._blocks: list[Block] = []
        self._places: Interner[Any] = Interner()
        self._phase_of, self._track_of = array("i"), array("i")
        self._read = 0

    def add(self, records: list[Record]) -> None:
        """Add the records of one chunk."""
        source = np.arange(self._read, self._read + len(records), dtype=np.int32)
        self._read += len(records)
        phase, track = self._phases_and_tracks(records)
        labels = track < 0
        if labels.any():
            self._label(list(compress(records, labels)))
            records = list(compress(records, ~labels))
            phase, track, source = phase[~labels], track[~labels], source[~labels]
        if records:
            columns = self._columns(records)
            self._chunks.append({"phase": phase, "track": track, "source": source, **columns})
            self._pack(records, source)

    def _phases_and_tracks(self, records: list[Record]) -> tuple[Codes32, Codes32]:
        """Codes of phase and track (-1 for metadata), computed once per distinct combination."""
        codes = self._places.codes(map(_PLACE, records), len(records))
        fresh = islice(self._places, len(self._phase_of), None)
        for letter, category, process, thread in fresh:
            self._phase_of.append(self.phases[letter, category])
            self._track_of.append(-1 if letter == "M" else self.tracks[process, thread])
        return np.array(self._phase_of, np.int32)[codes], np.array(self._track_of, np.int32)[codes]

    def _columns(self, records: list[Record]) -> dict[str, Array]:
        count = len(records)
        return {
            "name": self.names.codes(map(attrgetter("name"), records), count),
            "identity": self._identities(records),
            "time_ns": nanoseconds(_texts([record.ts for record in records])),
            "duration_us": _floats([record.dur for record in records]),
            "thread_duration_us": _floats([record.tdur for record in records]),
        }

    def _identities(self, records: list[Record]) -> Ids32:
        """Codes of `id`, else of `id2`; -1 for events without either."""
        codes = self.identities.codes(map(attrgetter("id"), records), len(records))
        codes[codes == self.identities[None]] = -1
        if any(map(attrgetter("id2"), records)):
            for row, local in enumerate(map(attrgetter("id2"), records)):
                if local and codes[row] < 0:
                    codes[row] = self.identities[bytes(local)]
        return codes

    def _pack(self, records: list[Record], source: Ids32) -> None:
        """Keep all arguments as text, and those that become columns as numbers too."""
        texts = list(map(attrgetter("args"), records))
        rows = np.flatnonzero(np.fromiter(map(len, texts), np.int64, len(texts)))
        if not len(rows):
            return
        texts = list(filter(None, texts))
        joined = b",".join(texts)
        known = _decode_known(joined, texts)
        for field in _fields_in(joined, len(texts)):
            values, default = _integers(known, field), getattr(_DEFAULTS, field)
            if (values != default).any():
                column = self._chunks[-1][field] = np.full(len(records), default, np.int64)
                column[rows] = values
        self._blocks.append(Block.of(source[rows], texts))

    def _label(self, records: list[Record]) -> None:
        for record in records:
            key = (record.pid, record.tid, record.name)
            if record.name in LABELS and key not in self.labels and record.args:
                value = next(iter(parse(bytes(record.args)).values()), "")
                self.labels[key] = str(value).strip()

    def column(self, name: str) -> Array:
        """A column over all chunks, shape (events,)."""
        default = getattr(_DEFAULTS, name, -1)
        parts = [
            chunk[name] if name in chunk else np.full(len(chunk["source"]), default, np.int64)
            for chunk in self._chunks
        ]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    @cached_property
    def arguments(self) -> Arguments:
        """The recorded arguments of every event."""
        return Arguments(tuple(self._blocks))


def _floats(values: list[float | None]) -> Floats:
    if values.count(None) == len(values):
        return np.full(len(values), np.nan)
    return np.array(values, np.float64)


def _fields_in(text: bytes, count: int) -> list[str]:
    """The known arguments that may occur in the text of `count` events.

    A search for an absent argument scans all of the text, so long texts are not searched.
    """
    if len(text) > _LONG_BYTES * count:
        return list(_FIELDS)
    fields = _FIELDS if b'"Device Type"' in text else _FIELDS.keys() - _OF_MEMORY
    return [field for field in fields if b'"%b"' % _FIELDS[field].encode() in text]


def _integers(known: list[KnownArguments], field: str) -> NDArray[np.int64]:
    try:
        return np.fromiter(map(attrgetter(field), known), np.int64, len(known))
    except OverflowError:
        return np.array([_wrapped(getattr(arguments, field)) for arguments in known], np.int64)


def _wrapped(value: int) -> int:
    """As int64: an unsigned address keeps its bits; a wider number becomes -1."""
    return (value + 2**63) % 2**64 - 2**63 if abs(value) < 2**64 else -1


def _texts(raws: list[Raw]) -> list[bytes]:
    """The text of each value; joining and splitting is far faster than converting each."""
    if not raws:
        return []
    texts = b"\n".join(raws).split(b"\n")
    return texts if len(texts) == len(raws) else [bytes(raw) for raw in raws]


def _decode_known(joined: bytes, texts: list[Raw]) -> list[KnownArguments]:
    try:
        found = _KNOWN.decode(b"[" + joined + b"]")
    except (msgspec.MsgspecError, RecursionError):
        return [_known_of(text) for text in texts]
    return [_DEFAULTS if arguments is None else arguments for arguments in found]


def _known_of(text: Raw) -> KnownArguments:
    try:
        return _ONE_KNOWN.decode(text) or _DEFAULTS
    except (msgspec.MsgspecError, RecursionError):
        return _coerced(text)


def _coerced(text: Raw) -> KnownArguments:
    """Known arguments of unexpected types: numbers in strings are converted, the rest ignored."""
    try:
        values = parse(bytes(text))
    except (ValueError, RecursionError):
        return _DEFAULTS
    found = {field: _integer(values.get(key)) for field, key in _FIELDS.items()}
    return KnownArguments(**{field: value for field, value in found.items() if value is not None})


def _integer(value: Any) -> int | None:
    try:
        number = int(value) if isinstance(value, int | float | str) else None
    except (ValueError, OverflowError):
        return None
    return number
