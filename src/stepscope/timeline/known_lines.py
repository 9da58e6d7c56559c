"""The source lines that a trace knows: of recorded Python frames, and of the calls of modules."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from stepscope.annotate.range_names import MODULE_FRAME, MODULE_RANGE
from stepscope.arrays import Ids
from stepscope.timeline.event_index import Index
from stepscope.trace.frame_name import FrameName

_NO_FILE = ("<", MODULE_FRAME, MODULE_RANGE)


@dataclass(frozen=True)
class KnownLine:
    """A line of a file.

    Attributes:
        file: as recorded; of frames without the folder of their package.
        line: from 1.
        what: `call` of a module, `class` of a module, or a `frame`.
        name: of the module, the class or the function.
    """

    file: str
    line: int
    what: str
    name: str


@lru_cache(maxsize=1 << 16)
def frame_place(name: str) -> KnownLine | None:
    """The source line in the name of a recorded Python frame; None for other events.

    Example:
        >>> frame_place("train.py(12): step")
        KnownLine(file='train.py', line=12, what='frame', name='step')
    """
    frame = FrameName.of(name)
    if frame is None or not frame.file.endswith(".py") or frame.file.startswith(_NO_FILE):
        return None
    return KnownLine(frame.file, frame.line, "frame", frame.function)


def module_places(index: Index, module: int) -> list[KnownLine]:
    """Where a module is called from, and where its class is written, those that are known."""
    table = index.trace["modules"]
    kind = table.text("class")[module] or ""
    columns = (
        ("call", table.text("path")[module] or kind, "call_file", "call_line"),
        ("class", kind, "file", "line"),
    )
    places = [
        KnownLine(table.text(file)[module] or "", int(table[line][module]), what, name)
        for what, name, file, line in columns
    ]
    return [place for place in places if place.file and place.line > 0]


def nearest_frames(index: Index, events: Ids) -> Ids:
    """The innermost recorded Python frame around each event, or around its launch; -1 for none."""
    names = index.events.text("name")
    is_place = names.passing(lambda name: frame_place(name) is not None)
    if not is_place.any():
        return np.full(len(events), -1, np.int64)
    at = np.where(index.on_device[events], index.launch[events], events)
    while (outwards := (at >= 0) & ~is_place[names.codes[at]]).any():
        at[outwards] = index.parent[at[outwards]]
    return at


def frames_around(index: Index, event: int) -> list[KnownLine]:
    """The recorded Python frames around an event, or around its launch, the innermost first."""
    names, found = index.events.text("name"), []
    at = int(index.launch[event]) if index.on_device[event] else event
    while at >= 0:
        if (place := frame_place(names[at] or "")) is not None:
            found.append(place)
        at = int(index.parent[at])
    return found
