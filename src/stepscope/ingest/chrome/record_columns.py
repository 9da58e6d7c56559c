"""The columns of a whole file, joined from its chunks."""

from __future__ import annotations

from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from stepscope.arrays import Array, Codes32, Ids32, Times
from stepscope.ingest.chrome.chunk import NO_IDENTITY, Chunk, Label, Place
from stepscope.ingest.chrome.known_arguments import default_of
from stepscope.trace.arguments import Arguments, Block, parse
from stepscope.trace.interner import Interner

LABELS = ("process_name", "thread_name", "process_labels")


class RecordColumns:
    """The columns of every event read so far, except metadata events, in file order.

    Attributes:
        phases: (phase, category) pairs by code.
        names: event names by code.
        tracks: (pid, tid) by code.
        labels: value of a metadata event by (pid, tid, its name).
    """

    def __init__(self) -> None:
        self.phases: Interner[tuple[str, str]] = Interner()
        self.names: Interner[str] = Interner()
        self.tracks: Interner[tuple[Any, Any]] = Interner()
        self.labels: dict[tuple[Any, Any, str], str] = {}
        self._chunks: list[dict[str, Array]] = []
        self._blocks: list[Block] = []
        self._identities: list[Times | list[Any]] = []
        self._read = 0

    def add(self, chunk: Chunk) -> None:
        """Add the next chunk of the file."""
        phase, track = self._phases_and_tracks(chunk.places)
        for label in chunk.labels:
            self._label(label)
        if len(chunk.source):
            names = self.names.codes(chunk.names, len(chunk.names))
            self._identities.append(chunk.identities)
            self._chunks.append(
                {
                    "phase": phase[chunk.place],
                    "track": track[chunk.place],
                    "source": chunk.source + np.int32(self._read),
                    "name": names[chunk.name],
                    **chunk.numbers,
                }
            )
        if chunk.arguments:
            self._blocks.append(chunk.arguments.shifted(self._read))
        self._read += chunk.size

    def _phases_and_tracks(self, places: list[Place]) -> tuple[Codes32, Codes32]:
        """Codes of phase and track of each place; metadata events are on no track, -1."""
        phase = [self.phases[place.phase, place.category] for place in places]
        track = [
            -1 if place.is_label else self.tracks[place.process, place.thread] for place in places
        ]
        return np.array(phase, np.int32), np.array(track, np.int32)

    def _label(self, label: Label) -> None:
        key = (label.place.process, label.place.thread, label.name)
        if label.name in LABELS and key not in self.labels and label.arguments:
            value = next(iter(parse(label.arguments).values()), "")
            self.labels[key] = str(value).strip()

    @cached_property
    def identity(self) -> Ids32:
        """A number for the `id` of each event, equal for equal ones; -1 for none; (events,)."""
        plain = [chunk for chunk in self._identities if isinstance(chunk, np.ndarray)]
        if len(plain) < len(self._identities):
            codes: Interner[Any] = Interner({None: -1})
            return codes.codes(chain.from_iterable(map(_listed, self._identities)))
        values = np.concatenate([*plain, np.zeros(0, np.int64)])
        found = np.flatnonzero(values != NO_IDENTITY)
        result = np.full(len(values), -1, np.int32)
        result[found] = np.unique(values[found], return_inverse=True)[1]
        return result

    def column(self, name: str) -> Array:
        """A column over all chunks, shape (events,)."""
        default = default_of(name)
        parts = [
            chunk[name] if name in chunk else np.full(len(chunk["source"]), default, np.int64)
            for chunk in self._chunks
        ]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    @cached_property
    def arguments(self) -> Arguments:
        """The recorded arguments of every event."""
        return Arguments(tuple(self._blocks))


def _listed(identities: Times | list[Any]) -> list[Any]:
    if isinstance(identities, list):
        return identities
    return [None if value == NO_IDENTITY else value for value in identities.tolist()]
