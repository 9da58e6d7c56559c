"""Begin and end events paired into slices.

Source: Trace Event Format, "Duration Events" and "Async Events".
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import groupby, islice, takewhile
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepscope.base.arrays import Ids, Mask, Rows, Times
from stepscope.base.compiled.library import function
from stepscope.base.parallel import in_threads
from stepscope.read.chrome.categories import category, set_device_work
from stepscope.read.chrome.event_columns import RecordedEvents
from stepscope.read.shared import LONGEST_NS, WarningLog
from stepscope.trace.columns import taken
from stepscope.trace.row_order import start_order
from stepscope.trace.schema import CATEGORIES
from stepscope.trace.sets import Interner, distinct_rows
from stepscope.trace.spill import spilled
from stepscope.trace.table import Text

_LOOK_AHEAD = 64  # of simultaneous marks; more would take quadratic time in a damaged file


class SliceMark(NamedTuple):
    """A begin or an end event: its row, time and name."""

    row: int
    time_ns: int
    name: str
    ends: bool


class SlicePair(NamedTuple):
    """A slice from the begin event at `row`."""

    row: int
    start_ns: int
    end_ns: int


def pair(marks: Iterable[SliceMark], last_ns: int, log: WarningLog) -> list[SlicePair]:
    """Pair the begins and ends of one track, which nest as a stack.

    An end closes the innermost open begin of its name; begins inside it that were never ended end with it.
    Names of end events are optional in the format, so an end whose name no open begin has closes the
    innermost begin, unless that begin's own end is still to come; then the end is superfluous. A begin
    without an end lasts until `last_ns`, the end of the recording. Everything unbalanced is logged.
    """
    ordered = sorted(marks, key=lambda mark: mark.time_ns)
    stack = _Stack(ordered, log)
    for _, simultaneous in groupby(ordered, lambda mark: mark.time_ns):
        now = deque(simultaneous)
        while now:
            index = stack.pick(now)
            stack.take(now[index])
            del now[index]
    return stack.finish(last_ns)


class _Stack:
    def __init__(self, marks: Iterable[SliceMark], log: WarningLog) -> None:
        self._log = log
        self._opened: list[SliceMark] = []
        self._names: Counter[str] = Counter()
        self._pairs: list[SlicePair] = []
        # For each name, how many more ends than begins are still to come.
        self._ends_to_come: Counter[str] = Counter()
        for mark in marks:
            self._ends_to_come[mark.name] += 1 if mark.ends else -1

    def pick(self, now: deque[SliceMark]) -> int:
        """The index of the next of some simultaneous marks, which recorders write in any order."""
        if now[0].ends:
            for index, mark in enumerate(islice(takewhile(attrgetter("ends"), now), _LOOK_AHEAD)):
                if self._opened and mark.name in ("", self._opened[-1].name):
                    return index
            if not self._names[now[0].name]:
                for index, mark in enumerate(islice(now, _LOOK_AHEAD)):
                    if not mark.ends and mark.name == now[0].name:
                        return index
        return 0

    def take(self, mark: SliceMark) -> None:
        self._ends_to_come[mark.name] -= 1 if mark.ends else -1
        if not mark.ends:
            self._opened.append(mark)
            self._names[mark.name] += 1
        elif mark.name and self._names[mark.name]:
            self._close_through(mark)
        elif self._opened and self._may_close(mark):
            self._pop(mark.time_ns)
        else:
            self._log("end_without_begin", f"an end event has no begin: {mark.name!r}")

    def _close_through(self, mark: SliceMark) -> None:
        while self._opened[-1].name != mark.name:
            self._abandon(mark.time_ns)
        self._pop(mark.time_ns)

    def _may_close(self, mark: SliceMark) -> bool:
        """Whether an end may close the innermost begin, which has another name."""
        inner = self._opened[-1].name
        if not mark.name:
            return True
        if self._ends_to_come[inner] > 0:
            return False
        self._log("end_of_other_name", f"an end {mark.name!r} closes a begin {inner!r}")
        return True

    def _abandon(self, end_ns: int) -> None:
        name = self._opened[-1].name
        self._log("begin_without_end", f"a begin event has no end: {name!r}")
        self._pop(end_ns)

    def _pop(self, end_ns: int) -> None:
        row, start_ns, name, _ = self._opened.pop()
        self._names[name] -= 1
        self._pairs.append(SlicePair(row, start_ns, max(start_ns, end_ns)))

    def finish(self, last_ns: int) -> list[SlicePair]:
        while self._opened:
            self._abandon(last_ns)
        return self._pairs


ASYNC = {"b": False, "S": False, "e": True, "F": True}
STACKED = {"B": False, "E": True}
ARROWS = {"s": False, "t": True, "f": True}


class ChromeSlices(NamedTuple):
    """For each slice its event, time and track; shape (slices,)."""

    row: Rows
    start_ns: Times
    duration_ns: Times
    track: NDArray[np.int64]


def slices_of(recorded: RecordedEvents) -> ChromeSlices:
    """Every slice, in order of start, so that each column is put in order as it is made."""
    whole = _complete(recorded)
    last = int(recorded.time_ns.max(where=recorded.usable, initial=0))
    last = int((whole.start_ns + whole.duration_ns).max(initial=last))
    rows = recorded.of_phase(*STACKED)
    stacked = _paired(recorded, rows, recorded.track[rows].astype(np.int64), STACKED, last)
    paired = [stacked, _async(recorded, last)]
    if not any(len(slices.row) for slices in paired):
        return _by_start(whole)
    joined = [np.concatenate(part) for part in zip(whole, *paired, strict=True)]
    order = np.argsort(joined[0], kind="stable")  # as in the file
    return _by_start(ChromeSlices(*(part[order] for part in joined)))


def _by_start(slices: ChromeSlices) -> ChromeSlices:
    order = start_order(slices.start_ns, slices.duration_ns)
    return slices if order is None else ChromeSlices(*(taken(part, order) for part in slices))


def _complete(recorded: RecordedEvents) -> ChromeSlices:
    rows = recorded.of_phase("X")
    start, track = (taken(column, rows) for column in (recorded.time_ns, recorded.track))
    return ChromeSlices(spilled(rows), start, spilled(_durations(recorded, rows)), track)


def _durations(recorded: RecordedEvents, rows: Rows) -> NDArray[np.int64]:
    us = taken(recorded.columns.take("duration_us"), rows)
    thread = taken(recorded.columns.take("thread_duration_us"), rows)
    borrowed = np.isnan(us) & (thread >= 0)
    us = np.where(borrowed, thread, us)
    missing, negative, long = np.isnan(us), us < 0, us * 1000 > LONGEST_NS
    for code, message, rows_of in (
        ("thread_duration", "a slice has no `dur`; its `tdur` is used", borrowed),
        ("no_duration", "a slice has no valid duration; 0 is used", missing),
        ("negative_duration", "a slice has a negative duration; 0 is used", negative),
        ("long_duration", "a slice lasts over 104 days; a duration of 0 is used", long),
    ):
        recorded.log(code, message, int(rows_of.sum()))
    return np.asarray(np.rint(np.where(missing | negative | long, 0, us) * 1000), np.int64)


def _async(recorded: RecordedEvents, last: int) -> ChromeSlices:
    """Async slices, on a separate track for each process and category."""
    rows, columns = recorded.of_phase(*ASYNC), recorded.columns
    identity, keys = columns.identity[rows].tolist(), list(columns.tracks)
    groups: Interner[tuple[Any, str, int]] = Interner()
    of_row = [
        groups[keys[track][0], recorded.phases[phase][1], number]
        for track, phase, number in zip(
            recorded.track[rows].tolist(), recorded.phase[rows].tolist(), identity, strict=True
        )
    ]
    tracks = [columns.tracks[process, f"async {category}".strip()] for process, category, _ in groups]
    slices = _paired(recorded, rows, np.array(of_row, np.int64), ASYNC, last)
    return slices._replace(track=np.array(tracks, np.int64)[slices.track])


def _paired(
    recorded: RecordedEvents, rows: Rows, group: Ids, ends: Mapping[str, bool], last: int
) -> ChromeSlices:
    """The slices of begins and ends, those of one group nested as a stack; `track` is the group."""
    order = np.lexsort((recorded.time_ns[rows], group))
    rows, group = rows[order], group[order]
    time_ns, name = taken(recorded.time_ns, rows), recorded.name.take(rows)
    is_end = np.array([ends.get(phase, False) for phase, _ in recorded.phases] or [False])
    is_end = is_end[recorded.phase[rows]]
    match = _matches(group, time_ns, is_end, name)
    begin, waiting = np.flatnonzero((match >= 0) & ~is_end), defaultdict[int, list[SliceMark]](list)
    others = np.flatnonzero(match < 0)
    for at in others[np.argsort(rows[others])].tolist():  # as in the file
        waiting[int(group[at])].append(SliceMark(at, int(time_ns[at]), name[at] or "", bool(is_end[at])))
    pairs = [slice_ for marks in waiting.values() for slice_ in pair(marks, last, recorded.log)]
    nested = np.array([begin, time_ns[begin], time_ns[match[begin]]])
    at, start, stop = np.append(nested, np.array(pairs, np.int64).reshape(-1, 3).T, axis=1)
    return ChromeSlices(rows[at], start, stop - start, group[at])


def _matches(group: Ids, time_ns: Times, is_end: Mask, name: Text) -> Ids:
    """For marks in order of group and time the other mark of the slice; -1 where `pair` has to look."""
    match = np.empty(len(group), np.int64)
    codes = np.where(name.where(bool), name.codes, -1).astype(np.int32)
    if not function("stepscope_match_marks")(len(group), group, time_ns, is_end, codes, match):
        raise MemoryError("too little memory to match begins and ends")
    return match


def event_columns(recorded: RecordedEvents, slices: ChromeSlices, streams: Mask) -> dict[str, Any]:
    """Columns of the events table; `streams` are the tracks that only labels call a stream."""
    rows = slices.row
    columns = recorded.columns
    numbers = ("correlation", "sequence", "forward_thread", "bytes")
    makers: dict[str, Callable[[], Any]] = {
        "category": partial(_categories, recorded, slices, streams),
        "name": partial(recorded.name.take, rows),
        "source": lambda: taken(columns.column("source"), rows),
        **{name: partial(lambda name: taken(columns.take(name), rows), name) for name in numbers},
    }
    made = in_threads(lambda make: make(), [*makers.values()], len(rows))
    return {
        "track": slices.track,
        "start_ns": slices.start_ns,
        "duration_ns": slices.duration_ns,
        **dict(zip(makers, made, strict=True)),
    }


def _categories(recorded: RecordedEvents, slices: ChromeSlices, streams: Mask) -> Text:
    """Category by (recorded category, name), computed once per distinct pair."""
    names, rows = recorded.name, slices.row
    pairs, pair_of = distinct_rows(recorded.phase[rows], names.codes[rows])
    codes = [
        CATEGORIES.index(category(recorded.phases[phase][1], names.values[name])) for phase, name in pairs
    ]
    categories = Text(np.array(codes, np.int8)[pair_of], CATEGORIES)
    if not streams.any():
        return categories
    on_stream = (slices.track < len(streams)) & streams[np.minimum(slices.track, len(streams) - 1)]
    bare = np.array([not category for _, category in recorded.phases], np.bool_)
    return set_device_work(categories, names.take(rows), on_stream & bare[recorded.phase[rows]])
