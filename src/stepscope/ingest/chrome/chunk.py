"""The columns of some consecutive events, as a decoder makes them of a piece of a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stepscope.arrays import Array, Codes32, Ids32, Times
from stepscope.trace.arguments import ArgumentBlock

NO_IDENTITY = -(2**63)


class Place(NamedTuple):
    """What many events have in common: phase, category, process and thread, as recorded."""

    phase: str
    category: str
    process: Any
    thread: Any

    @property
    def is_label(self) -> bool:
        """Whether events of this phase name a process or a thread."""
        return self.phase == "M"


class Label(NamedTuple):
    """A metadata event, which names its process or thread."""

    place: Place
    name: str
    arguments: bytes


@dataclass
class Chunk:
    """Consecutive events as columns; codes are indices into lists of the chunk's own.

    Attributes:
        size: number of records, metadata events included.
        places: distinct places in order of first appearance, those of metadata events included.
        labels: the metadata events, at least the first with arguments of each place and name.
        source: position of every other event among the records, shape (events,).
        place: code of its place, shape (events,).
        names: distinct names in order of first appearance.
        name: code of its name, shape (events,).
        identities: the `id` of each, else the text of its `id2`, else None; integers of shape
            (events,) if none is text, `NO_IDENTITY` for None.
        numbers: `time_ns`, `duration_us`, and what some event has of `thread_duration_us` and the
            `KnownArguments`, each of shape (events,).
        arguments: of those events that have some, in blocks.
    """

    size: int
    places: list[Place]
    labels: list[Label]
    source: Ids32
    place: Codes32
    names: list[str]
    name: Codes32
    identities: Times | list[Any]
    numbers: dict[str, Array] = field(default_factory=dict)
    arguments: Sequence[ArgumentBlock] = ()
