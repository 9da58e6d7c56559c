"""Iterations of a loop over compiled functions, found by the calls of these functions.

An iteration has one call of the training function: among the programs that take most of the time,
the one called least often. Other functions may also be called once per iteration, before or after
it. The iteration begins with the call that follows the longest pause, in which the loop loads data,
waits or prints.
"""

from collections import Counter
from typing import NamedTuple

import numpy as np

from stepscope.base.arrays import Mask, Rows, Times
from stepscope.facts.annotate.jax.calls import called_function, is_compiled_call, is_training_call
from stepscope.facts.annotate.jax.scopes import scope_of
from stepscope.trace.nesting import outermost
from stepscope.trace.trace import Trace

_HEAVY = 0.5  # of the time of the program that takes most: the training function may take less
_FEWEST = 2  # calls of a function that repeats


class LoopIterations(NamedTuple):
    """The iterations of a loop.

    Attributes:
        function: the function whose call begins an iteration.
        starts: start times, int64 ns, shape (iterations,).
        last_is_whole: whether the last iteration has all its calls.
    """

    function: str
    starts: Times
    last_is_whole: bool


class _LoopCalls(NamedTuple):
    """Calls in order of start: which function (index of `names`), start and end, shape (calls,)."""

    names: list[str]
    name: Rows
    start: Times
    end: Times

    def of(self, name: int) -> Mask:
        return self.name == name


def call_starts(trace: Trace, rows: Rows) -> Times:
    """When the calls around some events began, int64 ns, shape (rows,); else the events' start.

    Compiled work runs on other threads from about the return of its call: only the start of the
    call separates the work of one step from the next.
    """
    events = trace.events
    called = np.append(events.text("name").where(is_training_call), False)
    begin = events["start_ns"][rows].copy()
    around = events["parent"][rows]
    while (around >= 0).any():
        begin = np.where(called[around], events["start_ns"][around], begin)
        around = np.where(around >= 0, events["parent"][around], around)
    return begin


def iterations_by_calls(trace: Trace, track: int) -> LoopIterations | None:
    """The iterations of the loop on a track; None if no compiled function is called twice."""
    calls = _calls(trace, track)
    training = _training_function(trace, calls)
    if training is None:
        return None
    once = _once_per_iteration(calls, training)
    first = max(once, key=lambda name: _pause_before(calls, name))
    starts = calls.start[calls.of(first)]
    last = min(int(calls.start[calls.of(name)][-1]) for name in once)
    return LoopIterations(calls.names[first], starts, last >= int(starts[-1]))


def _calls(trace: Trace, track: int) -> _LoopCalls:
    events = trace.events
    called = events.text("name").where(is_compiled_call) & (events["track"] == track)
    rows = np.flatnonzero(outermost(events["parent"], called))
    name = events.text("name")
    found = [called_function(name[row] or "") for row in rows.tolist()]
    names = sorted(set(found))
    index = np.array([names.index(text) for text in found], np.intp)
    return _LoopCalls(names, index, *events.spans(rows))


def _training_function(trace: Trace, calls: _LoopCalls) -> int | None:
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
    """Time of the operations of each program, by name of its function, ns."""
    scope = trace.events.text("scope")
    scoped = scope.codes >= 0
    spent = np.bincount(scope.codes[scoped], trace.events["self_ns"][scoped], minlength=len(scope.values))
    result: Counter[str] = Counter()
    for text, time in zip(scope.values, spent.tolist(), strict=True):
        result[scope_of(text).program] += round(time)
    return result


def _once_per_iteration(calls: _LoopCalls, training: int) -> list[int]:
    """Functions called once between two calls of the training function, itself included."""
    iteration = np.searchsorted(calls.start[calls.of(training)], calls.start, side="right")
    iterations = int(calls.of(training).sum())
    return [
        name
        for name in range(len(calls.names))
        for found in (iteration[calls.of(name)],)
        if len(np.unique(found)) == len(found) and abs(len(found) - iterations) <= 1
    ]


def _pause_before(calls: _LoopCalls, name: int) -> float:
    """Median pause between a call and the compiled call before it, ns."""
    pause = calls.start[1:] - calls.end[:-1]
    before = pause[calls.of(name)[1:]]
    return float(np.median(before)) if len(before) else 0.0
