"""The columns of all events of a file, joined from its chunks, and selections of their rows."""

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from stepscope.base.arrays import Array, Codes32, Ids, Mask, Rows, Times
from stepscope.read.chrome.chunk import DEFAULTS, INVALID, NO_IDENTITY, ChromePlace, Chunk, Label
from stepscope.read.shared import EventNames, WarningLog, near_others
from stepscope.trace.arguments import Arguments, GrowingArguments, parse
from stepscope.trace.columns import GrowingArray, constant
from stepscope.trace.sets import Interner, members
from stepscope.trace.table import Text

LABELS = ("process_name", "thread_name", "process_labels")
_ABSENT = {"identity": NO_IDENTITY, "duration_us": math.nan, "thread_duration_us": math.nan, **DEFAULTS}
_MOST_CODE = 2**31  # ids below it are codes themselves
_LEAST, _MOST = -(2**62), 2**63  # of ids that are kept as numbers: others share what is below


class RecordColumns:
    """The columns of every event read so far, except metadata events, in file order."""

    def __init__(self) -> None:
        self.phases: Interner[tuple[str, str]] = Interner()  # phase and category
        self.names = EventNames()
        self.tracks: Interner[tuple[Any, Any]] = Interner()  # pid and tid
        self.labels: dict[tuple[Any, Any, str], str] = {}  # of metadata events, by pid, tid, and name
        self._growing: dict[str, GrowingArray] = {}
        self._finished: dict[str, Array] = {}
        self._arguments = GrowingArguments()
        self._odd_identities: Interner[str | bytes | int] = Interner()  # also numbers of any size
        self._rows = self._read = 0

    def add(self, chunk: Chunk) -> None:
        """Add the next chunk of the file."""
        phase, track = self._phases_and_tracks(chunk.places)
        for label in chunk.labels:
            self._label(label)
        if len(chunk.source):
            names = self.names.codes(chunk.names, len(chunk.names))
            columns = {
                "phase": phase[chunk.place],
                "track": track[chunk.place],
                "source": chunk.source + np.int32(self._read),
                "name": names[chunk.name],
                "identity": self._integers(chunk.identities),
                **chunk.numbers,
            }
            self._append(columns)
        for block in chunk.arguments:
            self._arguments.add(block, self._read)
        self._read += chunk.size

    def _append(self, columns: dict[str, Array]) -> None:
        """Add rows to each column; one that appears first here was of defaults until now."""
        for name, values in columns.items():
            column = self._growing.get(name)
            if column is None:
                column = self._growing[name] = GrowingArray(values.dtype)
            column.fill(_ABSENT.get(name), self._rows)
            column.append(values)
        self._rows += len(columns["phase"])

    def _integers(self, identities: Times | list[Any]) -> Times:
        """Identities as numbers: of texts the first ones after `NO_IDENTITY`."""
        if isinstance(identities, np.ndarray):
            return identities
        return np.fromiter(map(self._identity_number, identities), np.int64, len(identities))

    def _identity_number(self, identity: str | bytes | int | None) -> int:
        if identity is None:
            return NO_IDENTITY
        if isinstance(identity, int) and _LEAST <= identity < _MOST:
            return identity
        return NO_IDENTITY + 1 + self._odd_identities[identity]

    def _phases_and_tracks(self, places: list[ChromePlace]) -> tuple[Codes32, Codes32]:
        """Codes of phase and track of each place; metadata events are on no track, -1."""
        phase = [self.phases[place.phase, place.category] for place in places]
        track = [-1 if place.phase == "M" else self.tracks[place.process, place.thread] for place in places]
        return np.array(phase, np.int32), np.array(track, np.int32)

    def _label(self, label: Label) -> None:
        key = (label.place.process, label.place.thread, label.name)
        if label.name in LABELS and key not in self.labels and label.arguments:
            self.labels[key] = str(next(iter(parse(label.arguments).values()), "")).strip()

    @cached_property
    def identity(self) -> Ids:
        """A number for the `id` of each event, equal for equal ones; -1 for none; (events,)."""
        values = self.take("identity")
        if not len(values):
            return values
        has_identity = values != NO_IDENTITY
        if values.min(where=has_identity, initial=0) >= 0 and values.max(initial=0) < _MOST_CODE:
            return np.maximum(values, -1, out=values)
        result = np.full(len(values), -1, np.int64)
        result[has_identity] = np.unique(values[has_identity], return_inverse=True)[1]
        return result

    def column(self, name: str) -> Array:
        """A column over all chunks, shape (events,); nothing can be added afterwards."""
        if name not in self._finished:
            self._finished[name] = self._finish(name)
        return self._finished[name]

    def take(self, name: str) -> Array:
        """A column that nobody asks for again."""
        column = self.column(name)
        del self._finished[name]
        return column

    def _finish(self, name: str) -> Array:
        if name not in self._growing:
            return constant(_ABSENT.get(name, 0), self._rows)
        column = self._growing.pop(name)
        column.fill(_ABSENT.get(name), self._rows)
        return column.finished()

    @cached_property
    def arguments(self) -> Arguments:
        """The recorded arguments of every event."""
        return self._arguments.finished()


class RecordedEvents:
    """The columns of the recorded events, in file order, shape (events,)."""

    def __init__(self, columns: RecordColumns, log: WarningLog) -> None:
        self.columns, self.log = columns, log
        self.phases = list(columns.phases)  # (phase, category) as recorded, by code
        self.phase = columns.column("phase")
        self.time_ns = columns.column("time_ns")  # absolute
        self.track = columns.column("track")  # code of (pid, tid)
        self.name = Text(columns.column("name"), list(columns.names))
        self.usable = self._usable()

    def _usable(self) -> Mask:
        """Events with a plausible timestamp; the others are counted and skipped."""
        valid: Mask = self.time_ns != INVALID
        if valid.all():
            return near_others(self.time_ns, self.log)
        self.log("bad_timestamp", "skipped an event without a valid timestamp", int((~valid).sum()))
        valid[valid] = near_others(self.time_ns[valid], self.log)
        return valid

    def rows(self, test: Callable[[str, str], bool]) -> Rows:
        """Usable events whose phase and recorded category pass `test`, called once per pair."""
        wanted = np.array([test(*phase) for phase in self.phases], np.bool_)
        if not wanted.any():
            return np.zeros(0, np.intp)
        return np.flatnonzero(members(self.phase, wanted) & self.usable)

    def of_phase(self, *letters: str) -> Rows:
        """Usable events of one of some phases."""
        return self.rows(lambda phase, category: phase in letters)

    def letters(self, rows: Rows) -> Text:
        """Phases of some events."""
        return Text.of([phase for phase, _ in self.phases] or [""]).take(self.phase[rows])

    def categories(self, rows: Rows) -> Text:
        """Categories of some events as recorded."""
        return Text.of([category for _, category in self.phases] or [""]).take(self.phase[rows])
