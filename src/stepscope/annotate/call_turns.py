"""Where the turns of a loop over compiled functions begin, told by its calls of them.

JAX marks each such call on the thread that makes it: `PjitFunction(update)`. A turn has one call of
the function that trains: of those whose programs take most of the time the one called least often.
Other functions may be called once a turn too, before it or after it; the turn begins with the call
before which the loop makes the longest pause to load data, to wait or to print.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepscope.annotate.scopes import scope_of
from stepscope.trace.nesting import inherit
from stepscope.trace.trace import Trace

Times = NDArray[np.int64]
Mask = NDArray[np.bool_]
_CALL = re.compile(r"^PjitFunction\((.*)\)$", re.DOTALL)
_HEAVY = 0.5
_FEWEST = 2


class Turns(NamedTuple):
    """The turns of a loop.

    Attributes:
        function: whose call begins a turn.
        starts: when, int64 ns, shape (turns,).
        last_is_whole: whether all that a turn calls is called after the last start.
    """

    function: str
    starts: Times
    last_is_whole: bool


class _Calls(NamedTuple):
    """Calls in order of start: which function (index of `names`), start and end, shape (calls,)."""

    names: list[str]
    name: NDArray[np.intp]
    start: Times
    end: Times

    def of(self, name: int) -> Mask:
        chosen: Mask = self.name == name
        return chosen


def is_compiled_call(name: str) -> bool:
    """Whether an event of this name is the call of a compiled function.

    Example:
        >>> is_compiled_call("PjitFunction(update)")
        True
    """
    return _CALL.match(name) is not None


def call_starts(trace: Trace, rows: NDArray[np.intp]) -> Times:
    """When the calls around some events began, int64 ns, shape (rows,); else the events' start.

    What a call asks for runs on other threads from its return on, or shortly before that: only
    its beginning tells one step's work from the next one's.
    """
    events = trace.events
    called = np.append(events.text("name").where(is_compiled_call), False)
    begin = events["start_ns"][rows].copy()
    around = events["parent"][rows]
    while (around >= 0).any():
        begin = np.where(called[around], events["start_ns"][around], begin)
        around = np.where(around >= 0, events["parent"][around], around)
    return begin


def turns_by_calls(trace: Trace, track: int) -> Turns | None:
    """The turns of the loop on a track; None where it repeats no call of a compiled function."""
    calls = _calls(trace, track)
    trains = _that_trains(trace, calls)
    if trains is None:
        return None
    once = _once_a_turn(calls, trains)
    first = max(once, key=lambda name: _pause_before(calls, name))
    starts = calls.start[calls.of(first)]
    last = min(int(calls.start[calls.of(name)][-1]) for name in once)
    return Turns(calls.names[first], starts, last >= int(starts[-1]))


def _calls(trace: Trace, track: int) -> _Calls:
    """The calls on a track that are in no other call."""
    events = trace.events
    called = events.text("name").where(is_compiled_call) & (events["track"] == track)
    around = inherit(events["parent"], np.where(called, 1, -1))
    inside = (events["parent"] >= 0) & (around[events["parent"]] > 0)
    rows = np.flatnonzero(called & ~inside)
    name = events.text("name")
    found = [_CALL.sub(r"\1", name[row] or "") for row in rows.tolist()]
    names = sorted(set(found))
    start = events["start_ns"][rows]
    index = np.array([names.index(one) for one in found], np.intp)
    return _Calls(names, index, start, start + events["duration_ns"][rows])


def _that_trains(trace: Trace, calls: _Calls) -> int | None:
    count = np.bincount(calls.name, minlength=len(calls.names))
    repeated = np.flatnonzero(count >= _FEWEST).tolist()
    if not repeated:
        return None
    work = _work(trace)
    spent = {name: work[calls.names[name]] for name in repeated}
    if not any(spent.values()):
        lasted = calls.end - calls.start
        spent = {name: int(lasted[calls.of(name)].sum()) for name in repeated}
    most = max(spent.values())
    heavy = [name for name in repeated if spent[name] >= _HEAVY * most]
    return min(heavy, key=lambda name: (count[name], -calls.end[calls.of(name)][-1]))


def _work(trace: Trace) -> Counter[str]:
    """By name of its function, what the operations of each program take, ns."""
    scope = trace.events.text("scope")
    borne = scope.codes >= 0
    spent = np.bincount(
        scope.codes[borne], trace.events["self_ns"][borne], minlength=len(scope.values)
    )
    result: Counter[str] = Counter()
    for text, time in zip(scope.values, spent.tolist(), strict=True):
        result[scope_of(text).program] += round(time)
    return result


def _once_a_turn(calls: _Calls, trains: int) -> list[int]:
    """Functions called once between two calls of the one that trains; that one included."""
    turn = np.searchsorted(calls.start[calls.of(trains)], calls.start, side="right")
    turns = int(calls.of(trains).sum())
    return [
        name
        for name in range(len(calls.names))
        for mine in (turn[calls.of(name)],)
        if len(np.unique(mine)) == len(mine) and abs(len(mine) - turns) <= 1
    ]


def _pause_before(calls: _Calls, name: int) -> float:
    """How long the loop has called nothing compiled by then, ns, in the median."""
    pause = calls.start[1:] - calls.end[:-1]
    before = pause[calls.of(name)[1:]]
    return float(np.median(before)) if len(before) else 0.0
