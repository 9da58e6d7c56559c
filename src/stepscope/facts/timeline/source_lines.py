"""Source lines that a trace knows, of module calls and Python frames, and what they cost.

Inclusive time is the time in which a line, or anything it calls, runs: a union of intervals, so no
line takes more than the step. Own time is the part that no deeper line has. The backward of what a
line calls runs elsewhere, below the line that starts backward; the forward line lists it apart.

A recorded frame has the line of its function's first statement, except for frames that were open when
recording started: these have the line that was running then. They enclose the steps, so they are left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import msgspec
import numpy as np

from stepscope.base.arrays import Ids, IntArray, Mask, Times
from stepscope.facts.annotate.range_names import MODULE_FRAME, MODULE_RANGE
from stepscope.facts.timeline.event_index import Index
from stepscope.trace.frame_name import FrameName
from stepscope.trace.intervals import grouped_union, index_pairs
from stepscope.trace.nesting import inherit
from stepscope.trace.row_order import last_begun, outermost_of_key
from stepscope.trace.schema import COMPUTING
from stepscope.trace.sets import mask_of

_NO_FILE = ("<", MODULE_FRAME, MODULE_RANGE)


class SourcePlace(msgspec.Struct, frozen=True):
    """A source line of an operation."""

    file: str  # as recorded; of frames without the folder of their package
    line: int  # from 1
    what: str  # `call` of a module, `class` of a module, or a `frame`
    name: str  # of the module, the class or the function


@lru_cache(maxsize=1 << 16)
def frame_place(name: str) -> SourcePlace | None:
    """The source line in the name of a recorded Python frame; None for other events."""
    frame = FrameName.of(name)
    if frame is None or not frame.file.endswith(".py") or frame.file.startswith(_NO_FILE):
        return None
    return SourcePlace(frame.file, frame.line, "frame", frame.function)


def module_places(index: Index, module: int) -> list[SourcePlace]:
    """Where a module is called from, and where its class is written, those that are known."""
    table = index.trace["modules"]
    kind = table.text("class")[module] or ""
    columns = (
        ("call", table.text("path")[module] or kind, "call_file", "call_line"),
        ("class", kind, "file", "line"),
    )
    places = [
        SourcePlace(table.text(file)[module] or "", int(table[line][module]), what, name)
        for what, name, file, line in columns
    ]
    return [place for place in places if place.file and place.line > 0]


def nearest_frames(index: Index, events: Ids) -> Ids:
    """The innermost recorded Python frame around each event, or around its launch; -1 for none."""
    names = index.events.text("name")
    is_place = names.passing(lambda name: frame_place(name) is not None)
    at = np.where(index.on_device[events], index.launch[events], events)
    while (outwards := (at >= 0) & ~is_place[names.codes[at]]).any():
        at[outwards] = index.parent[at[outwards]]
    return at


def frames_around(index: Index, event: int) -> list[SourcePlace]:
    """The recorded Python frames around an event, or around its launch, the innermost first."""
    names, found = index.events.text("name"), []
    at = int(index.launch[event]) if index.on_device[event] else event
    while at >= 0:
        if (place := frame_place(names[at] or "")) is not None:
            found.append(place)
        at = int(index.parent[at])
    return found


@dataclass(frozen=True)
class LineCost:
    """What one line costs in some steps, all of them together."""

    place: SourcePlace  # the line
    modules: list[int]  # ids of the modules that it calls or defines
    calls: int  # of these modules, or of the frame, in the whole trace
    cpu_ns: int  # time in which it or what it calls runs on a CPU
    own_cpu_ns: int  # CPU time that belongs to no deeper line
    device_ns: int  # device busy time of what it launches
    own_device_ns: int  # device busy time of what it launches itself, not through a deeper line
    backward_cpu_ns: int  # CPU time of the backward of what it calls, and of recomputation
    backward_device_ns: int  # device busy time of the same


def line_costs(index: Index, chosen: Mask) -> list[LineCost]:
    """What each line that the trace knows costs in `chosen` events, of the selected steps of one rank."""
    return [*_of_modules(index, chosen), *_of_frames(index, chosen)]


class _LineCosts:
    """Times by line, added up from pairs of a line and an event."""

    def __init__(self, index: Index, chosen: Mask, lines: int) -> None:
        self._index, self._lines = index, lines
        self._end = _clipped_end(index, chosen)

    def busy(self, line: Ids, event: Ids) -> list[int]:
        """Time in which events run, as a union for each line."""
        start = self._index.start[event]
        end = np.maximum(self._end[event], start)
        return grouped_union(line, start, end, self._lines).tolist()

    def total(self, line: Ids, event: Ids) -> list[int]:
        """Sum of the events' self times for each line."""
        own = self._index.events["self_ns"][event]
        return np.bincount(line, own, self._lines).astype(np.int64).tolist()


def _clipped_end(index: Index, chosen: Mask) -> Times:
    """End of each chosen event; of CPU events no later than their step, shape (events,)."""
    end: Times = index.end.astype(np.int64).copy()
    host = np.flatnonzero(chosen & ~index.on_device & (index.events["step"] >= 0))
    if len(host):
        steps = index.trace["steps"]
        steps = steps.take(steps["rank"] == index.rank[host[0]])
        order = np.argsort(steps["step"], kind="stable")
        row = order[np.searchsorted(steps["step"][order], index.events["step"][host])]
        end[host] = np.minimum(end[host], steps["end_ns"][row])
    return end


def _computing(index: Index, chosen: Mask) -> Ids:
    """Chosen device work; collectives belong to no line, as to no module."""
    return np.flatnonzero(chosen & index.events.text("category").mask(*COMPUTING) & index.on_device)


# -- lines that call modules, or define their classes


def _of_modules(index: Index, chosen: Mask) -> Iterator[LineCost]:
    modules = index.trace["modules"]
    called: dict[SourcePlace, list[int]] = {}
    for module in range(len(modules)):
        for place in module_places(index, module):
            called.setdefault(SourcePlace(place.file, place.line, place.what, ""), []).append(module)
    lines = _ModuleLines(index, chosen, called)
    for line, (place, inside) in enumerate(called.items()):
        text = modules.text("class" if place.what == "class" else "path")
        names = ", ".join(dict.fromkeys(text[module] or "model" for module in inside))
        named = SourcePlace(place.file, place.line, place.what, names)
        calls = int(modules["calls"][inside].sum())
        yield LineCost(named, inside, calls, *(column[line] for column in lines.columns()))


class _ModuleLines:
    """The times of lines that call modules or define their classes."""

    def __init__(self, index: Index, chosen: Mask, called: dict[SourcePlace, list[int]]) -> None:
        known = chosen & (index.events["module"] >= 0)
        self._index = index
        # Forward that is repeated in it included.
        self._backward = index.events.text("stage").mask("backward") | (index.events["recompute"] == 1)
        self._costs = _LineCosts(index, chosen, len(called))
        self._host = np.flatnonzero(known & ~index.on_device)
        self._work = _computing(index, known)
        parents = index.trace["modules"]["parent"]
        self._around = _lines_around(parents, called)
        self._own = _lines_around(np.full(len(parents), -1), called)

    def columns(self) -> Iterator[list[int]]:
        """A column for each time of `LineCost`, in its order."""
        costs = self._costs
        for events, own in ((self._host, costs.total), (self._work, costs.busy)):
            called = events[~self._backward[events]]
            yield costs.busy(*self._pairs(self._around, self._outermost(called)))
            yield own(*self._pairs(self._own, called))
        for events, backward in ((self._host, costs.total), (self._work, costs.busy)):
            yield backward(*self._pairs(self._around, events[self._backward[events]]))

    def _outermost(self, event: Ids) -> Ids:
        """Events that no other one of the same module contains."""
        if not len(event) or self._index.on_device[event[0]]:
            return event
        inside = mask_of(event, len(self._index.on_device))
        parent, module = self._index.parent[event], self._index.events["module"]
        return event[(parent < 0) | ~inside[parent] | (module[parent] != module[event])]

    def _pairs(self, lines_of: tuple[Ids, Ids], event: Ids) -> tuple[Ids, Ids]:
        """The lines of each event's module, and the event for each."""
        ends, lines = lines_of
        within = self._index.events["module"][event].astype(np.int64)
        pair, position = index_pairs(ends[within], ends[within + 1])
        return lines[position], event[pair]


def _lines_around(parent: IntArray, called: dict[SourcePlace, list[int]]) -> tuple[Ids, Ids]:
    """For each module the lines of itself and of those around it, each once: ends, and lines."""
    own: list[set[int]] = [set() for _ in range(len(parent))]
    for line, modules in enumerate(called.values()):
        for module in modules:
            own[module].add(line)
    for module, above in enumerate(parent.tolist()):
        if above >= 0:
            own[module] |= own[above]  # parents come first
    ends = np.cumsum([0, *map(len, own)])
    return ends, np.array([line for lines in own for line in sorted(lines)], np.int64)


# -- recorded Python frames


def _of_frames(index: Index, chosen: Mask) -> Iterator[LineCost]:
    names = index.events.text("name")
    known = [frame_place(name) for name in names.values]
    places = list(dict.fromkeys(place for place in known if place is not None))
    if not places:
        return
    number = {place: line for line, place in enumerate(places)}
    codes = np.array([number[place] if place else -1 for place in known] + [-1], np.int64)
    within_step = index.is_frame & (index.events["step"] >= 0)
    line = np.where(within_step, codes[names.codes], -1)
    calls = np.bincount(line[line >= 0], minlength=len(places)).tolist()
    columns = list(_frame_columns(index, chosen, line, _LineCosts(index, chosen, len(places))))
    for number_of_line, place in enumerate(places):
        if calls[number_of_line]:
            times = (column[number_of_line] for column in columns)
            yield LineCost(place, [], calls[number_of_line], *times)


def _frame_columns(index: Index, chosen: Mask, line: Ids, costs: _LineCosts) -> Iterator[list[int]]:
    """A column for each time of `LineCost`, in its order."""
    host, work = np.flatnonzero(chosen & ~index.on_device), _computing(index, chosen)
    work, line = work[index.launch[work] >= 0], _without_recursion(index, line)
    frames = np.flatnonzero(chosen & (line >= 0))
    nearest = inherit(index.events["parent"], line).astype(np.int64)
    yield costs.busy(line[frames], frames)
    yield costs.total(*_known(nearest[host], host))
    launch = index.launch[work].astype(np.int64)
    starts = _start_of_backward(index, line, launch)
    launches = np.concatenate([launch, starts[starts >= 0]])
    launched = np.append(work, work[starts >= 0])
    around = [(line[frame], launched[item]) for frame, item in _around(index, line, launches)]
    yield costs.busy(*_joined(around))
    yield costs.busy(*_known(nearest[launch], work))
    yield costs.total(*_of_backward(index, line, host, host))
    yield costs.busy(*_of_backward(index, line, launch, work))


def _known(line: Ids, event: Ids) -> tuple[Ids, Ids]:
    return line[line >= 0], event[line >= 0]


def _of_backward(index: Index, line: Ids, at: Ids, event: Ids) -> tuple[Ids, Ids]:
    """The lines around the forward of backward events that these lines do not enclose."""
    forward = inherit(index.events["parent"], index.events["forward_event"]).astype(np.int64)
    linked = np.flatnonzero(forward[at] >= 0)
    found = []
    for frame, item in _around(index, line, forward[at[linked]]):
        time = index.start[at[linked[item]]]
        apart = (time < index.start[frame]) | (index.end[frame] <= time)
        found.append((line[frame[apart]], event[linked[item[apart]]]))
    return _joined(found)


def _start_of_backward(index: Index, line: Ids, at: Ids) -> Ids:
    """The innermost frame of the training loop's thread that runs while another thread runs `at`.

    Autograd has threads of its own; meanwhile the loop's thread waits in the call that started it.
    What is no backward, or is on the loop's thread itself, has none: -1.
    """
    result = np.full(len(at), -1, np.int64)
    away = np.flatnonzero(index.events.text("stage").take(at).mask("backward"))
    frames = np.flatnonzero((line >= 0) & np.isin(index.rank, index.rank[at[away[:1]]]))
    if not len(frames):
        return result
    thread = np.bincount(index.track[frames], index.duration[frames]).argmax()
    away = away[index.track[at[away]] != thread]
    frames = frames[index.track[frames] == thread]
    time = index.start[at[away]]
    found = np.append(frames, -1)[last_begun(index.start[frames], time)]
    while (ended := (found >= 0) & (index.end[found] <= time)).any():
        found = np.where(ended, index.parent[found], found)
    result[away] = found
    return result


def _joined(pairs: list[tuple[Ids, Ids]]) -> tuple[Ids, Ids]:
    none = np.zeros(0, np.int64)
    lines, events = zip((none, none), *pairs, strict=True)
    return np.concatenate(lines), np.concatenate(events)


def _without_recursion(index: Index, line: Ids) -> Ids:
    """The line of each frame, -1 for a frame inside another of the same line."""
    rows, result = np.flatnonzero(line >= 0), line.copy()
    result[rows[~outermost_of_key(index.place[rows], index.last[rows] + 1, line[rows])]] = -1
    return result


def _around(index: Index, line: Ids, start: Ids) -> Iterator[tuple[Ids, Ids]]:
    """The frames around each of `start`, itself included, level by level: frame and its item."""
    at, item = start, np.arange(len(start))
    while len(at):
        known = line[at] >= 0
        if known.any():
            yield at[known], item[known]
        around = index.parent[at].astype(np.int64)
        at, item = around[around >= 0], item[around >= 0]
