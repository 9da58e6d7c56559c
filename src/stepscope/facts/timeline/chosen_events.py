"""Events chosen by an operation, a module, a line or a name, and the operations that hold them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.base.arrays import Ids, Mask
from stepscope.facts.timeline.event_index import Index
from stepscope.facts.timeline.level import Level, Opening
from stepscope.facts.timeline.operation import Operation
from stepscope.facts.timeline.operation_labels import short_name
from stepscope.facts.timeline.source_lines import frame_place, module_places
from stepscope.trace.intervals import index_pairs
from stepscope.trace.nesting import is_inside
from stepscope.trace.sets import mask_of


def of_modules(index: Index, modules: set[int]) -> Mask:
    """Events of some modules and of all inside them, backward and device work included."""
    parent = index.trace["modules"]["parent"]
    inside = is_inside(parent, mask_of(np.array([*modules], np.int64), len(parent)))
    return np.append(inside, False)[index.events["module"]]


def of_name(index: Index, name: str) -> Mask:
    """Device work of a name, or operators where there is no device, bool, shape (events,)."""
    return index.events.text("name").mask(name) & (index.events["kind"] >= 0)


def of_line(index: Index, file: str, line: int) -> Mask:
    """Events of the modules that a line calls or defines, and inside the frames that it is."""
    called = modules_of_line(index, file, line)
    chosen = of_modules(index, called) if called else np.zeros(len(index.order), np.bool_)
    frames = frames_of_line(index, file, line)
    _, place = index_pairs(*index.inside(frames))
    chosen[index.order[place]] = True
    chosen[index.device_work(frames)[1]] = True
    return chosen


def modules_of_line(index: Index, file: str, line: int) -> set[int]:
    """Ids of the modules that a line calls or defines."""
    return {
        module
        for module in range(len(index.trace["modules"]))
        for place in module_places(index, module)
        if (place.file, place.line) == (file, line)
    }


def frames_of_line(index: Index, file: str, line: int) -> Ids:
    """Ids of the recorded Python frames of a line."""

    def is_it(name: str) -> bool:
        place = frame_place(name)
        return place is not None and (place.file, place.line) == (file, line)

    return np.flatnonzero(index.is_frame & index.events.text("name").where(is_it))


@dataclass(frozen=True)
class EventPlaces:
    """Where each raw event of an operation is shown."""

    events: Ids  # event ids, ascending, int64
    paths: list[str]  # of operations, each once
    place: Ids  # number into `paths` of the smallest operation that holds each event, int64

    def path_of(self, event: int) -> str | None:
        """The smallest operation that holds an event; None if it is not one of these."""
        row = int(np.searchsorted(self.events, event))
        if row == len(self.events) or self.events[row] != event:
            return None
        return self.paths[int(self.place[row])]


def events_inside(index: Index, operations: Sequence[Operation]) -> tuple[Ids, Ids]:
    """The raw events of operations: which operation's they are, and their ids, both ascending.

    Those of an operation are its own, those inside, and their device work.
    """
    rows = np.concatenate([np.zeros(0, np.int64), *(one.rows for one in operations)])
    of = np.repeat(np.arange(len(operations)), [len(one.rows) for one in operations])
    # A step's rows are all its events, on devices too.
    step = np.array([one.kind == "step" for one in operations], np.bool_)[of]
    opens = ~step & ~index.on_device[rows]
    inner, place = index_pairs(*index.inside(rows[opens]))
    launcher, work = index.device_work(rows[~step])
    # Rows hold different events, so none is there twice.
    events = np.concatenate([rows[step], index.order[place], work])
    of = np.concatenate([of[step], of[opens][inner], of[~step][launcher]])
    sets, rows = np.divmod(np.sort(of * len(index.order) + events), max(len(index.order), 1))
    return sets, rows


def place_events(index: Index, path: str, events: Ids, depths: Iterable[Sequence[Opening]]) -> EventPlaces:
    """The smallest operation that holds each raw event of an operation.

    `depths` are the levels below it, each before those inside it.
    """
    paths = [path]
    of_event = np.full(len(index.order), -1, np.int64)
    of_event[events] = 0
    for depth in depths:
        of, inside = events_inside(index, [one for level in depth for one in level.every.operations])
        of_event[inside] = of + len(paths)
        paths += [path for level in depth for path in level.every.paths]
    return EventPlaces(events, paths, of_event[events])


class Marks:
    """Chosen events, shape (events,), `total` of them, to be counted in the operations of any level.

    Counting them inside an operation takes two look-ups, so that every level on screen is marked at once.
    """

    def __init__(self, index: Index, chosen: Mask) -> None:
        self.chosen, self.total = chosen, int(chosen.sum())
        self._index = index
        self._before = _running(chosen[index.order])
        self._launched_before = _running(chosen[index.launched])

    def hits(self, level: Level) -> Ids:
        """Chosen events inside each operation of a level, int64, shape (operations,)."""
        return np.array([self._hits_of(one) for one in level.operations], np.int64)

    def _hits_of(self, operation: Operation) -> int:
        index, rows = self._index, operation.rows
        if operation.kind == "step":
            return int(self.chosen[rows].sum())
        on_device = index.on_device[rows]
        first, end = index.inside(rows[~on_device])
        called, until = index.launches_inside(rows[~on_device])
        on_cpu = self._before[end] - self._before[first]
        launched = self._launched_before[until] - self._launched_before[called]
        return int(on_cpu.sum() + launched.sum() + self.chosen[rows[on_device]].sum())


class OperationSearch(Marks):
    """The events whose recorded or short name contains a text, in any case; none for an empty text.

    An operation whose own name matches, as `forward`, counts as one where no event in it does.

    Source: HOTLINE appendix C.5 (Search).
    """

    def __init__(self, index: Index, text: str) -> None:
        self._text = text.casefold()
        super().__init__(index, index.events.text("name").where(self._matches))

    def _matches(self, name: str) -> bool:
        both = (name.casefold(), short_name(name).casefold())
        return bool(self._text) and any(self._text in one for one in both)

    def _hits_of(self, operation: Operation) -> int:
        return super()._hits_of(operation) or self._matches(operation.name)


def _running(found: Mask) -> Ids:
    return np.concatenate([[0], np.cumsum(found)])
