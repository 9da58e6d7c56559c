"""The raw events of an operation, and for each of them the smallest operation that holds it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.arrays import Ids
from stepscope.timeline.event_index import Index, ranges
from stepscope.timeline.level import Opening
from stepscope.timeline.operation import Operation


@dataclass(frozen=True)
class EventPlaces:
    """Where each raw event of an operation is shown.

    Attributes:
        events: event ids, ascending, int64.
        paths: of operations, each once.
        place: number into `paths` of the smallest operation that holds each event, int64.
    """

    events: Ids
    paths: list[str]
    place: Ids

    def path_of(self, event: int) -> str | None:
        """The smallest operation that holds an event; None if it is not one of these."""
        row = int(np.searchsorted(self.events, event))
        if row == len(self.events) or self.events[row] != event:
            return None
        return self.paths[int(self.place[row])]


def events_of(index: Index, operation: Operation) -> Ids:
    """Ids of an operation's raw events, ascending: its own, those inside, and their device work."""
    return events_inside(index, [operation])[1]


def events_inside(index: Index, operations: Sequence[Operation]) -> tuple[Ids, Ids]:
    """The raw events of operations: which operation's they are, and their ids, both ascending."""
    nothing = np.zeros(0, np.int64)
    rows = np.concatenate([nothing, *(one.rows for one in operations)])
    of = np.repeat(np.arange(len(operations)), [len(one.rows) for one in operations])
    # A step's rows are all its events, on devices too.
    step = np.array([one.kind == "step" for one in operations], np.bool_)[of]
    opens = ~step & ~index.on_device[rows]
    inner, place = ranges(*index.inside(rows[opens]))
    launcher, work = index.device_work(rows[~step])
    # Rows hold different events, so none is there twice.
    events = np.concatenate([rows[step], index.order[place], work])
    of = np.concatenate([of[step], of[opens][inner], of[~step][launcher]])
    if len(operations) == 1:
        return of, np.sort(events)
    sets, rows = np.divmod(np.sort(of * len(index.order) + events), max(len(index.order), 1))
    return sets, rows


def place_events(
    index: Index, path: str, events: Ids, depths: Iterable[Sequence[Opening]]
) -> EventPlaces:
    """The smallest operation that holds each raw event of an operation.

    Args:
        index: of the trace.
        path: of the operation.
        events: its raw events, ascending.
        depths: the levels below it, each before those inside it.
    """
    paths = [path]
    of_event = np.full(len(index.order), -1, np.int64)
    of_event[events] = 0
    for depth in depths:
        operations = [one for level in depth for one in level.every.operations]
        of, inside = events_inside(index, operations)
        of_event[inside] = of + len(paths)
        paths += [path for level in depth for path in level.every.paths]
    return EventPlaces(events, paths, of_event[events])
