"""The multi-scale timeline of a trace: any operation opens into the level inside it.

Source: HOTLINE sections 4.5 and 5, appendix C.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from threading import Lock, RLock
from typing import Generic, TypeVar

import numpy as np

from stepscope.base.arrays import Ids, Mask
from stepscope.errors import TraceError
from stepscope.facts.annotate.steps.step_table import steady_steps, step_lengths
from stepscope.facts.timeline.chosen_events import EventPlaces, OperationSearch, events_inside, place_events
from stepscope.facts.timeline.chrome_export import ChromeTrace, chrome_trace
from stepscope.facts.timeline.expand import Opened, Path, open_operations, open_step, open_trace
from stepscope.facts.timeline.lanes import Contents
from stepscope.facts.timeline.level import Level, Opening
from stepscope.facts.timeline.operation import TINY, Operation, StepId
from stepscope.trace.trace import Trace

Key = TypeVar("Key")
Value = TypeVar("Value")
_EVERY = 2**62  # levels: more than any trace has
_KEPT_OPERATIONS = 25_000  # of levels that were opened: about 2 kB each
_KEPT_WHOLE = 50_000  # operations of steps that were opened whole
_OPENED_AHEAD = 32  # the longest operations of a level, one of which somebody may open next
_OPENED_EVENTS = 30_000  # at a time, where others may have their turn
_DEEPEST = 500  # levels of a path; chosen: Python calls 1,000 functions inside each other


class KeptBySize(Generic[Key, Value]):
    """Values used last, as long as their sizes have room; the newest stays however large it is.

    Threads may share it.
    """

    def __init__(self, room: int, size_of: Callable[[Value], int]) -> None:
        self._room, self._size_of = room, size_of
        self._values: dict[Key, Value] = {}
        self._size = 0
        self._lock = Lock()

    def get(self, key: Key) -> Value | None:
        """A value, which becomes the last to be dropped; None if it is not kept."""
        with self._lock:
            value = self._values.pop(key, None)
            if value is not None:
                self._values[key] = value
            return value

    def set(self, key: Key, value: Value) -> None:
        """Keep a value, and drop those that were not used for longest where there is no room."""
        with self._lock:
            if (before := self._values.pop(key, None)) is not None:
                self._size -= self._size_of(before)
            self._values[key] = value
            self._size += self._size_of(value)
            while self._size > self._room and len(self._values) > 1:
                self._size -= self._size_of(self._values.pop(next(iter(self._values))))


@dataclass(frozen=True, eq=False)
class _Whole:
    """The levels below one operation, or the costliest; never changed, as threads share it."""

    openings: Sequence[Opening]  # each level before those inside it
    most: int  # of the costliest that are among them
    levels: Mapping[tuple[Path, bool], Level]  # by path, and whether all threads are shown
    places: EventPlaces  # the smallest operation of these levels that holds each event

    @classmethod
    def of(cls, openings: Sequence[Opening], most: int, places: EventPlaces) -> "_Whole":
        levels = {(one.shown.path, False): one.shown for one in openings}
        levels |= {(one.every.path, True): one.every for one in openings}
        return cls(openings, most, levels, places)

    def __len__(self) -> int:
        return len(self.places.paths)


class Timeline:
    """An annotated trace as levels: steps, stages, calls of modules, operators, calls and kernels.

    A level is computed when it is asked for. It is named by the path of operations that lead to it,
    as `s5.0/t3/m12.4071`; the same file has the same paths each time it is opened.

    Args:
        tiny: share of its parent's runtime below which an operation is tiny.
        rank: the rank that is shown first; by default the one whose steps take longest.
    """

    def __init__(self, trace: Trace, tiny: float = TINY, rank: int | None = None) -> None:
        self.trace, self.tiny, self._rank = trace, tiny, rank
        self.contents = Contents(trace)
        self.index = self.contents.index
        self._kept = KeptBySize[tuple[Path, bool], Level](_KEPT_OPERATIONS, len)
        self._opening = RLock()
        # One opening at a time: two that share the interpreter would both be done later, and one
        # may open what the other waits for.
        self._turn = RLock()
        self._wholes = KeptBySize[Path, _Whole](_KEPT_WHOLE, len)

    def level(self, path: str = "", every: bool = False) -> Level:
        """The level inside an operation.

        Args:
            path: ids of the operations that lead to it, joined by `/`; empty for the steps.
            every: all threads, streams and ranks, not only the longest of a kind.

        Raises:
            TraceError: if no operation has this path.
        """
        return self._level(self._path(path), every)

    def levels(self, path: str, every: bool = False) -> list[Level]:
        """The levels that lead to an operation, from the steps on, and the one inside it."""
        parts = _parts(path)
        return [self._level(parts[:depth], every) for depth in range(len(parts) + 1)]

    def inside(self, path: str, every: bool = False) -> list[Level]:
        """The levels inside the longest operations of a level, which somebody may open next.

        Opened together they cost little more than one.

        Raises:
            TraceError: if no operation has this path.
        """
        for _ in self.open_inside(path, every):
            pass
        return [self._level(one.path, every) for one in self._longest(path, every)]

    def open_inside(self, path: str, every: bool = False) -> Iterator[None]:
        """Open what `inside` gives, a few levels at a time: others may have their turn between; raises
        TraceError if no operation has this path."""
        missing = [one for one in self._longest(path, every) if self._known((one.path, every)) is None]
        yield
        for some in _in_parts(missing):
            with self._turn:
                for level in self._open(some, every):
                    self._kept.set((level.path, every), level)
            yield

    def _longest(self, path: str, every: bool) -> list[Opened]:
        return sorted(_openable(self.level(path, every)), key=lambda one: -one.runtime_ns)[:_OPENED_AHEAD]

    def below(self, path: str, most: int = _EVERY, known: Sequence[Opening] = ()) -> Iterator[list[Opening]]:
        """The levels below an operation in lists, each level before those inside it.

        Threads and streams that are not shown are included. Levels that are not among the `most`
        costliest may be left out, with those inside them. Those `known` are not opened again.

        Raises:
            TraceError: if no operation has this path.
        """
        shown, every = (self.level(path, threads) for threads in (False, True))
        opened = [Opening(shown, every if shown.hides else shown, inf)]
        costs, ready = [inf], {one.shown.path: one for one in known}
        while opened:
            yield opened
            inside = [(one, level.cost_ns) for level in opened for one in _openable(level.every)]
            before = len(costs)
            costs += [min(one.runtime_ns, around_ns) for one, around_ns in inside]
            chosen = [(inside[at - before][0], costs[at]) for at in _costliest(costs, most) if at >= before]
            fresh = iter(self._open_all([one for one in chosen if one[0].path not in ready]))
            opened = [ready.get(one.path) or next(fresh) for one, _ in chosen]

    def open_all(self, path: str, most: int = _EVERY) -> list[Opening]:
        """The `most` costliest levels below an operation, each before those inside it; all by default.

        Those asked for last are kept: each question about one of their levels is a look-up.

        Raises:
            TraceError: if no operation has this path.
        """
        key = _parts(path)
        with self._opening:  # several threads that ask for the same one open it once
            whole = self._wholes.get(key)
            if whole is None or whole.most < most:
                depths = list(self.below(path, most, whole.openings if whole else ()))
                places = place_events(self.index, path, self.raw_events(path), depths)
                openings = [one for depth in depths for one in depth]
                whole = _Whole.of(openings, most if len(openings) >= most else _EVERY, places)
                self._wholes.set(key, whole)
        return [whole.openings[row] for row in _costliest([one.cost_ns for one in whole.openings], most)]

    def start(self) -> str:
        """The path to begin with: the slowest step of the rank that is shown first.

        One that warms up is not meant.
        """
        steps = [StepId.of(one.id) for one in self._level((), False).operations]
        lengths = self.step_lengths()
        steady = self.step_lengths(steady_steps(self.trace["steps"]))
        return str(max(steps, key=lambda one: (one in steady, lengths[one]))) if steps else ""

    def step_lengths(self, chosen: Mask | None = None) -> dict[StepId, int]:
        """The length of each step's window, ns, of chosen rows of the table `steps` or of all."""
        table = self.trace["steps"]
        table = table if chosen is None else table.take(chosen)
        columns = (table["step"], table["rank"], step_lengths(table))
        rows = zip(*(values.tolist() for values in columns), strict=True)
        return {StepId(step, rank): length for step, rank, length in rows}

    def find(self, path: str) -> tuple[Level, int]:
        """The level that lists an operation, the shown ones first, and its number there; raises TraceError if
        no operation has this path."""
        parts = self._path(path)
        if not parts:
            raise TraceError("expected the path of an operation, as s5.0/t3, found an empty one")
        return self._find(parts)

    def path_of(self, event: int) -> str:
        """The path of the smallest operation that holds an event; empty outside all steps.

        In a step whose levels were all opened together it is an operation of these levels.
        """
        step = StepId(int(self.trace.events["step"][event]), int(self.index.rank[event]))
        whole = self._wholes.get((str(step),))
        place = None if whole is None else whole.places.path_of(event)
        if whole is not None and whole.most == _EVERY and place is not None:
            return place
        path = _parts(place or "")
        while True:
            inside = (one for one in self._level(path, True).operations if self._holds(one, event))
            if (found := next(inside, None)) is None:
                return "/".join(path)
            path = (*path, found.id)

    def search(self, text: str) -> OperationSearch:
        """The events whose name contains a text, to be counted in the operations of any level."""
        return OperationSearch(self.index, text)

    def raw_events(self, path: str) -> Ids:
        """Ids of an operation's raw events, ascending, those on devices included."""
        level, number = self.find(path)
        return events_inside(self.index, [level.operations[number]])[1]

    def chrome_trace(self, path: str) -> ChromeTrace:
        """The raw events of an operation as a Chrome trace, see `chrome_trace`."""
        return chrome_trace(self.index, self.raw_events(path))

    def _holds(self, operation: Operation, event: int) -> bool:
        if operation.kind == "step":
            step, rank = self.trace.events["step"][event], self.index.rank[event]
            return operation.id == str(StepId(step, rank))
        launched = self.index.launch[event] >= 0 and event not in operation.rows
        at = self.index.place[self.index.launch[event] if launched else event]
        first, end = self.index.inside(operation.rows)
        return bool(((first <= at) & (at < end)).any())

    def _path(self, path: str) -> Path:
        """Its parts; their levels are opened from the top, so that a wrong one ends there."""
        parts = _parts(path)
        if len(parts) > _DEEPEST:
            raise TraceError(f"no operation lies {len(parts):,} levels deep; was the path made by this page?")
        for depth in range(1, len(parts) if self._known((parts, False)) is None else 1):
            self._level(parts[:depth], False)
        return parts

    def _level(self, path: Path, every: bool) -> Level:
        if (level := self._known((path, every))) is not None:
            return level
        with self._turn:
            if (level := self._known((path, every))) is None:
                level = self._inside(path, every) if path else open_trace(self.contents, every, self._rank)
                self._kept.set((path, every), level)
        return level

    def _known(self, key: tuple[Path, bool]) -> Level | None:
        path, _ = key
        for depth in range(1, len(path) + 1):
            whole = self._wholes.get(path[:depth])
            if whole is not None and (level := whole.levels.get(key)) is not None:
                return level
        return self._kept.get(key)

    def _inside(self, path: Path, every: bool) -> Level:
        above, number = self._find(path)
        return self._open([*_opened(above, np.array([number]))], every)[0]

    def _open(self, inside: Sequence[Opened], every: bool) -> list[Level]:
        if inside[0].operation.kind == "step":
            return [open_step(self.contents, one, every, self.tiny) for one in inside]
        return open_operations(self.contents, inside, every, self.tiny)

    def _open_all(self, chosen: list[tuple[Opened, float]]) -> list[Opening]:
        inside = [one for one, _ in chosen]
        shown = self._open(inside, False) if inside else []
        hiding = [one for one, level in zip(inside, shown, strict=True) if level.hides]
        whole = iter(self._open(hiding, True) if hiding else [])
        return [
            Opening(level, next(whole) if level.hides else level, cost)
            for level, (_, cost) in zip(shown, chosen, strict=True)
        ]

    def _find(self, path: Path) -> tuple[Level, int]:
        for all_threads in (False, True):
            above = self._level(path[:-1], all_threads)
            if (number := above.find(path[-1])) is not None:
                return above, number
        raise TraceError(
            f"no operation {path[-1]!r} is inside {'/'.join(path[:-1]) or 'the trace'!r}; "
            "was the path made of the same file?"
        )


def _parts(path: str) -> Path:
    return tuple(filter(None, path.split("/")))


def _in_parts(operations: Sequence[Opened]) -> Iterator[list[Opened]]:
    """Operations, as many at a time as do not have too many events."""
    part, events = list[Opened](), 0
    for one in operations:
        if part and events + one.events > _OPENED_EVENTS:
            yield part
            part, events = [], 0
        part, events = [*part, one], events + one.events
    if part:
        yield part


def _costliest(costs: Sequence[float], most: int) -> list[int]:
    """The rows of the highest costs, of equal ones the first, ascending."""
    return np.sort(np.argsort(-np.array(costs), kind="stable")[:most]).tolist()


def _openable(level: Level) -> Iterator[Opened]:
    return _opened(level, np.flatnonzero(level.costs.events > 1))


def _opened(level: Level, numbers: Ids) -> Iterator[Opened]:
    costs = level.costs
    columns = (costs.start_ns, costs.end_ns, costs.runtime_ns, costs.events)
    rows = zip(numbers.tolist(), *(column[numbers].tolist() for column in columns), strict=True)
    for number, start, end, runtime, events in rows:
        operation = level.operations[number]
        yield Opened((*level.path, operation.id), operation, start, end, runtime, events)
