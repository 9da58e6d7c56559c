"""Begin and end events paired into slices.

Source: Trace Event Format, "Duration Events" and "Async Events".
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from itertools import groupby, islice, takewhile
from typing import NamedTuple

from stepscope.ingest.warning_log import WarningLog

_LOOK_AHEAD = 64


class Mark(NamedTuple):
    """A begin or an end event: its row, time and name."""

    row: int
    time_ns: int
    name: str
    ends: bool


class Pair(NamedTuple):
    """A slice from the begin event at `row`."""

    row: int
    start_ns: int
    end_ns: int


def pair(marks: Iterable[Mark], last_ns: int, log: WarningLog) -> list[Pair]:
    """Pair the begins and ends of one track, which nest as a stack.

    An end closes the innermost open begin of its name; begins inside it that were never ended end
    with it. Names of end events are optional in the format, so an end whose name no open begin has
    closes the innermost begin, unless that begin's own end is still to come; then the end is
    superfluous. A begin without an end lasts until `last_ns`.

    Args:
        marks: in file order; sorted by time here.
        last_ns: end of the recording.
        log: receives a warning for everything unbalanced.

    Example:
        >>> pair([Mark(0, 5, "a", False), Mark(1, 9, "a", True)], 9, WarningLog())
        [Pair(row=0, start_ns=5, end_ns=9)]
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
    def __init__(self, marks: Iterable[Mark], log: WarningLog) -> None:
        self._log = log
        self._opened: list[Mark] = []
        self._names: Counter[str] = Counter()
        self._pairs: list[Pair] = []
        # For each name, how many more ends than begins are still to come.
        self._ends_to_come: Counter[str] = Counter()
        for mark in marks:
            self._ends_to_come[mark.name] += 1 if mark.ends else -1

    def pick(self, now: deque[Mark]) -> int:
        """The index of the next of some simultaneous marks, which recorders write in any order."""
        if now[0].ends:
            for index, mark in enumerate(islice(takewhile(_ends, now), _LOOK_AHEAD)):
                if self._opened and mark.name in ("", self._opened[-1].name):
                    return index
            if not self._names[now[0].name]:
                for index, mark in enumerate(islice(now, _LOOK_AHEAD)):
                    if not mark.ends and mark.name == now[0].name:
                        return index
        return 0

    def take(self, mark: Mark) -> None:
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

    def _close_through(self, mark: Mark) -> None:
        while self._opened[-1].name != mark.name:
            self._abandon(mark.time_ns)
        self._pop(mark.time_ns)

    def _may_close(self, mark: Mark) -> bool:
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
        self._pairs.append(Pair(row, start_ns, max(start_ns, end_ns)))

    def finish(self, last_ns: int) -> list[Pair]:
        while self._opened:
            self._abandon(last_ns)
        return self._pairs


def _ends(mark: Mark) -> bool:
    return mark.ends
