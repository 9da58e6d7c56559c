"""Calls the compiled decoder of trace events, `native/decode_events.cpp`.

It decodes what is well formed and leaves text that is odd in any way to `tolerant_json.py`. Of each
value that needs more than a glance it returns the place in the text, and msgspec decodes it here.
"""

import threading
from itertools import accumulate
from typing import Any

import msgspec
import numpy as np

from stepscope.base.arrays import Array, Codes32, Floats, IntArray, Octets, Times
from stepscope.base.compiled.library import function
from stepscope.errors import IngestError
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
from stepscope.trace.columns import constant

_MOST_BYTES = 16 << 20  # texts are of four MiB; more is an event as long, which needs no speed
_BYTES_PER_ROW = 24  # an event with a phase, a time, a process and a thread is longer
# As in C++: columns of integers, of codes and places, and of places of values that Python decodes.
# The place of a text is its start and its end.
_NUMBERS = ("time_ns", "duration_us", "arguments_end", "thread_duration_us", "identity", *DEFAULTS)
_OPTIONAL = _NUMBERS[3:]
_CODES = {
    "source": 1,
    "place": 1,
    "name": 1,
    "arguments_source": 1,
    "odd_event": 1,
    "odd_text": 2,
    "label_place": 1,
    "label_name": 2,
    "label_arguments": 2,
    "name_text": 2,
    "phase": 2,
    "category": 2,
    "process": 2,
    "thread": 2,
}
_CODE_START = dict(zip(_CODES, accumulate(_CODES.values(), initial=0), strict=False))
_TEXTS = ("time_ns", "duration_us", "thread_duration_us", "identity", "local_identity")
_COUNTS = (
    "records", "events", "labels", "names", "places", "argument_bytes", "with_arguments",
    "odd_arguments", "odd_times", "odd_durations", "odd_thread_durations", "odd_identities", "used",
)  # fmt: skip
_DEFAULTS = np.array([int(np.array(np.nan).view(np.int64)), NO_IDENTITY, *DEFAULTS.values()], np.int64)
_STRINGS = msgspec.json.Decoder(list[str])
_IDENTITIES = msgspec.json.Decoder(list[int | str | None])
_REALS = msgspec.json.Decoder(list[float | None])
_NO_ROOM = 0  # a null pointer


def decode_chunk(text: bytes, size: int) -> Chunk | None:
    """The columns of the events in the first bytes of a text, without the brackets of their array.

    None where the text is odd. It may be called from several threads at once, and runs without the
    interpreter's lock.
    """
    if size > _MOST_BYTES:
        return None
    try:
        decoded = _decoded(text, size, size // _BYTES_PER_ROW + 1)
        return decoded.chunk() if decoded else None
    except ValueError:  # of msgspec, or not UTF-8
        return None


def is_event(text: bytes) -> bool:
    """Whether a text is one event that `decode_events` takes."""
    try:
        decoded = _decoded(text, len(text), 1)
        return decoded is not None and decoded.is_whole()
    except ValueError:
        return False


def decode_events(texts: list[bytes]) -> Chunk:
    """The columns of some events, of which each `is_event`.

    Raises IngestError where they are odd together: somebody chose names whose hashes collide.
    """
    joined = b",".join(texts)
    if decoded := _decoded(joined, len(joined), len(texts)):
        return decoded.chunk()
    raise IngestError("the names of the events collide, as those of no recording do")


def _decoded(text: bytes, size: int, rows: int) -> "_Decoded | None":
    """What is in a text, None where it is odd; decoded again if places of values are needed.

    A file that needs them for one chunk mostly needs them for the next. Raises ValueError if it is not UTF-8.
    """
    if not function("stepscope_is_ascii")(text, size):
        text[:size].decode()
    decode_events = function("stepscope_decode_events")
    room = _room(rows)
    counts = np.empty(len(_COUNTS), np.int64)
    while True:
        columns = (_DEFAULTS, room.numbers, room.codes, room.texts if room.needs_texts else _NO_ROOM)
        joined = np.empty(size, np.uint8)
        if not decode_events(text, size, room.rows, *columns, joined, counts):
            return None
        decoded = _Decoded(text, room, dict(zip(_COUNTS, counts.tolist(), strict=True)), joined)
        if room.needs_texts or not decoded.needs_texts:
            return decoded
        room.needs_texts = True


class _Room:
    """Memory for the columns of a chunk, kept for the next chunk of the same thread."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.numbers = np.empty((len(_NUMBERS), rows), np.int64)
        self.codes = np.empty((sum(_CODES.values()), rows), np.int32)
        self.texts = np.empty((len(_TEXTS), rows, 2), np.int32)
        self.needs_texts = False


def _room(rows: int) -> _Room:
    room: _Room | None = getattr(_scratch, "room", None)
    if room is None or room.rows < rows:
        room = _scratch.room = _Room(rows)
    return room


_scratch = threading.local()


class _Decoded:
    def __init__(self, text: bytes, room: _Room, count: dict[str, int], joined: Octets) -> None:
        self._text, self._room, self._count, self._joined = text, room, count, joined

    @property
    def needs_texts(self) -> bool:
        """Whether Python has to decode some values."""
        return any(
            self._count[f"odd_{name}"] for name in ("times", "durations", "thread_durations", "identities")
        )

    def is_whole(self) -> bool:
        """True; raises ValueError for what only msgspec finds odd, such as a process that is no integer."""
        return bool(self.chunk() if self.needs_texts else self._places())

    def chunk(self) -> Chunk:
        """The columns, in memory of their own; raises ValueError as `is_whole` does."""
        places = self._places()
        numbers = {"time_ns": self._times(), "duration_us": self._reals("duration")}
        if self._is_used("thread_duration_us"):
            thread = self._reals("thread_duration")
            if not np.isnan(thread).all():
                numbers["thread_duration_us"] = thread
        return Chunk(
            size=self._count["records"],
            places=places,
            labels=self._labels(places),
            source=self._codes("source").copy(),
            place=self._codes("place").copy(),
            names=_STRINGS.decode(_array(self._texts("name_text", "names"), b'""')),
            name=self._codes("name").copy(),
            identities=self._identities(),
            numbers=numbers | self._known(),
            arguments=self._blocks(),
        )

    # -- the columns in memory that is used again

    def _numbers(self, name: str, rows: str = "events") -> IntArray:
        return self._room.numbers[_NUMBERS.index(name), : self._count[rows]]

    def _codes(self, name: str, rows: str = "events", offset: int = 0) -> Codes32:
        return self._room.codes[_CODE_START[name] + offset, : self._count[rows]]

    def _is_used(self, name: str) -> bool:
        return bool(self._count["used"] >> _OPTIONAL.index(name) & 1)

    def _texts(self, name: str, rows: str) -> list[bytes]:
        """The text of each value, empty for an absent one."""
        return self._between(self._codes(name, rows), self._codes(name, rows, 1))

    def _texts_of_events(self, name: str) -> list[bytes]:
        places = self._room.texts[_TEXTS.index(name), : self._count["events"]]
        return self._between(places[:, 0], places[:, 1])

    def _between(self, start: Codes32, end: Codes32) -> list[bytes]:
        return [self._text[a:b] for a, b in zip(start.tolist(), end.tolist(), strict=True)]

    # -- its columns

    def _places(self) -> list[ChromePlace]:
        phases, categories = (
            _STRINGS.decode(_array(self._texts(name, "places"), b'""')) for name in ("phase", "category")
        )
        processes, threads = (
            _IDENTITIES.decode(_array(self._texts(name, "places"), b"null")) for name in ("process", "thread")
        )
        return list(map(ChromePlace, phases, categories, processes, threads))

    def _labels(self, places: list[ChromePlace]) -> list[Label]:
        if not self._count["labels"]:
            return []
        at = self._codes("label_place", "labels").tolist()
        names = _STRINGS.decode(_array(self._texts("label_name", "labels"), b'""'))
        texts = self._texts("label_arguments", "labels")
        return [Label(places[code], name, text) for code, name, text in zip(at, names, texts, strict=True)]

    def _times(self) -> Times:
        if self._count["odd_times"]:
            return nanoseconds(self._texts_of_events("time_ns"))
        return self._numbers("time_ns").astype(np.int64)

    def _reals(self, name: str) -> Floats:
        if self._count[f"odd_{name}s"]:
            return np.array(_REALS.decode(_array(self._texts_of_events(f"{name}_us"), b"null")), np.float64)
        return self._numbers(f"{name}_us").view(np.float64).copy()

    def _identities(self) -> Times | list[Any]:
        if self._count["odd_identities"]:
            identities = _IDENTITIES.decode(_array(self._texts_of_events("identity"), b"null"))
            local = self._texts_of_events("local_identity")
            return [b or None if a is None else a for a, b in zip(identities, local, strict=True)]
        if self._is_used("identity"):
            return self._numbers("identity").astype(np.int64)
        return constant(NO_IDENTITY, self._count["events"])

    # -- arguments

    def _blocks(self) -> list[ArgumentBlock]:
        source = self._codes("arguments_source", "with_arguments").copy()
        ends = self._numbers("arguments_end", "with_arguments").astype(np.int64)
        return ArgumentBlock.several(source, ends, self._joined[: self._count["argument_bytes"]])

    def _known(self) -> dict[str, Array]:
        odd = self._count["odd_arguments"]
        columns: dict[str, Array] = {
            name: self._numbers(name).copy()
            if self._is_used(name)
            else np.full(self._count["events"], default)
            for name, default in DEFAULTS.items()
            if odd or self._is_used(name)
        }
        if odd:  # arguments of other types than expected
            rows = self._codes("odd_event", "odd_arguments")
            numbers = map(known_arguments, self._texts("odd_text", "odd_arguments"))
            for column, values in zip(columns.values(), zip(*numbers, strict=True), strict=True):
                column[rows] = values
        return {name: column for name, column in columns.items() if (column != DEFAULTS[name]).any()}


def _array(texts: list[bytes], absent: bytes) -> bytes:
    """The text of a JSON array of some values."""
    return b"[" + b",".join([text or absent for text in texts]) + b"]"
