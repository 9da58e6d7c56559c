"""Calls of compiled functions (`PjitFunction(update)`): which work they asked for, and who waits.

JAX returns from a call before its work is done, and runs programs one after the other. In a loop
that reads nothing back the work of a call may begin many calls later. Three kinds of evidence link
a program's run to its call, the strongest first:

- the id of the run, where the call has it too (JAX up to 0.9);
- nesting: a small program runs inside its call;
- order: the k-th other run of a function belongs to its k-th other call. Runs without a call were
  called before the recording began: those that the calls leave over, and those that began before
  the call that would be theirs. The last call may have no event, if the recording ended in it.

A wait may last longer than the work: `jax.block_until_ready` goes through a tree of arrays in
Python, and a small program has ended before its call returns. All of it is time of the call.

docs/design/annotation.md, "Steps", says which call begins an iteration of the loop.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from stepscope.base.arrays import Codes, Codes32, Ids, Ids32, IntArray, Mask, Rows, Times
from stepscope.facts.annotate.jax.scopes import program_names, scope_of
from stepscope.facts.annotate.links.launches import on_host
from stepscope.trace.nesting import inherit, innermost, outermost
from stepscope.trace.row_order import last_begun, places_among, running_span
from stepscope.trace.schema import STAGES
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

CALL = re.compile(r"^(?:Pjit|JaxPmap)Function\((.*)\)$", re.DOTALL)  # the latter up to JAX 0.7
_GRADIENT = "stepscope.gradient"  # as our recorder marks it
_WAIT = re.compile(r"BlockHostUntilReady|Buffer::Await$|^wait: |^ArrayImpl\.copy_to_host_async$")


def is_compiled_call(name: str) -> bool:
    """Whether an event of this name is the call of a compiled function.

    Example:
        >>> is_compiled_call("PjitFunction(update)")
        True
    """
    return CALL.match(name) is not None


def is_training_call(name: str) -> bool:
    """Whether it is a call that can begin a step: compiled, or a gradient outside of `jax.jit`.

    Example:
        >>> is_training_call("stepscope.gradient")
        True
    """
    return is_compiled_call(name) or name == _GRADIENT


def called_function(name: str) -> str:
    """The function that a call calls; a name that is no call is returned as it is.

    Example:
        >>> called_function("PjitFunction(update)")
        'update'
    """
    return CALL.sub(r"\1", name)


def is_wait(name: str) -> bool:
    """Whether the program waits for a result of XLA, or reads it, in an event of this name.

    Example:
        >>> is_wait("CommonPjRtBuffer::Await"), is_wait("wait: float(x)")
        (True, True)
    """
    return _WAIT.search(name) is not None


# -- the call of each run of a program

UNKNOWN, BEFORE_RECORDING = -1, -2
_EXECUTES = re.compile(r"Executable::Execute")


def calls_of_host_work(trace: Trace) -> Ids32:
    """The call that asked for each piece of compiled work on a thread of the host.

    Returns:
        int32, shape (events,): the event of the call; `UNKNOWN` if none is known, and of all
        other events; `BEFORE_RECORDING` of work that was called for before the recording began.
    """
    events = trace.events
    result = np.full(len(events), UNKNOWN, np.int32)
    if not events.text("name").where(is_compiled_call).any():
        return result
    calls, (run_of, count) = _Calls(trace), _runs(trace)
    if not (count and len(calls.rows)):
        return result
    rows = np.flatnonzero(run_of >= 0)
    starts_it = events.text("category").mask("runtime")[rows]  # with the run's id, and no operation
    call = _first_call(calls, rows[starts_it], run_of[rows[starts_it]], count)
    call = np.where(call == UNKNOWN, _first_call(calls, rows, run_of[rows], count), call)
    _link_by_order(trace, calls, rows, run_of[rows], call)
    spread = _spread(events["parent"], np.where(calls.on_track, UNKNOWN, run_of))
    found = (spread >= 0) & ~calls.on_track
    result[found] = call[spread[found]]
    return result


def call_around(trace: Trace) -> Ids32:
    """The call of a compiled function in which each event is, -1 if none; int32, (events,)."""
    return _Calls(trace).of


class _Calls:
    """The calls of compiled functions that run a program.

    `of` is the call in which each event is, itself included, -1 if none, and `on_track` whether it is on
    the thread of one, shape (events,); `rows` are the calls in order of start. When those began to execute
    in which the recording ended is in `cut_off`, ns.
    """

    def __init__(self, trace: Trace) -> None:
        events = trace.events
        is_call = events.text("name").where(is_compiled_call) & on_host(trace)
        self.of = _without_repeats(events["parent"], events["name"], innermost(events["parent"], is_call))
        self.rows = _that_execute(trace, self.of)
        self.on_track: Mask = np.isin(events["track"], np.unique(events["track"][is_call]))
        self.cut_off = self._cut_off(events)

    def _cut_off(self, events: Table) -> Times:
        """What executes a program outside of any call, after all calls, was in one itself."""
        last = events["start_ns"][self.rows].max(initial=np.iinfo(np.int64).min)
        executes = events.text("name").where(lambda name: bool(_EXECUTES.search(name)))
        alone = executes & self.on_track & (self.of < 0) & (events["start_ns"] > last)
        return events["start_ns"][alone & ~np.append(alone, False)[events["parent"]]]


def _without_repeats(parent: Ids32, name: IntArray, call: Ids32) -> Ids32:
    """The call of each event; a call is recorded twice, in itself, and the outer one stands."""
    result = call.copy()
    while True:
        beyond = np.where(result >= 0, parent[result], -1)
        outer = np.where(beyond >= 0, call[beyond], -1)
        repeats = (outer >= 0) & (name[outer] == name[result])
        if not repeats.any():
            return result
        result = np.where(repeats, outer, result)


def _that_execute(trace: Trace, call_of: Ids32) -> Ids:
    """The calls that execute a program; of functions for which none is seen to, the outermost.

    A call within another mostly belongs to its trace, which executes nothing.
    """
    events = trace.events
    names = events["name"]
    executes = events.text("name").where(lambda name: bool(_EXECUTES.search(name)))
    seen = np.unique(call_of[executes & (call_of >= 0)])
    calls = np.unique(call_of[call_of >= 0])
    around = events["parent"][calls]
    outermost = calls[np.where(around >= 0, call_of[around], -1) < 0]
    return np.unique(np.append(seen, outermost[~np.isin(names[outermost], names[seen])]))


def _runs(trace: Trace) -> tuple[Rows, int]:
    """The number of the run of each event that has a run's id, else -1; and how many runs."""
    events = trace.events
    has_id = on_host(trace) & (events["correlation"] >= 0)
    ids = np.unique(events["correlation"][has_id & events.text("category").mask("cpu_op")])
    return np.where(has_id, places_among(ids, events["correlation"]), -1), len(ids)


def _first_call(calls: _Calls, rows: Ids, run: Rows, count: int) -> Ids32:
    """The call in which the first of some events of each run is."""
    result = np.full(count, UNKNOWN, np.int32)
    called = calls.of[rows] >= 0
    result[run[called][::-1]] = calls.of[rows[called]][::-1]
    return result


def _link_by_order(trace: Trace, calls: _Calls, rows: Ids, run: Rows, call: Ids32) -> None:
    """Link the other runs of each function, in order of start, to its other calls."""
    events = trace.events
    start = np.full(len(call), np.iinfo(np.int64).max)
    np.minimum.at(start, run, events["start_ns"][rows])
    function = _functions(trace, rows, run, len(call))
    called = events.text("name").take(calls.rows).compact().map(called_function)
    free = ~np.isin(calls.rows, call)
    for name in {*function.take(call == UNKNOWN).compact().values} & {*called.values}:
        waiting = np.flatnonzero((call == UNKNOWN) & function.mask(name))
        waiting = waiting[np.argsort(start[waiting], kind="stable")]
        left = calls.rows[free & called.mask(name)]
        begin, called_at = start[waiting], events["start_ns"][left]
        own = calls.cut_off[calls.cut_off <= begin.max()][: max(len(begin) - len(left), 0)]
        left = np.append(left, np.full(len(own), UNKNOWN))
        call[waiting] = calls_in_order(begin, left, np.append(called_at, own))


def _functions(trace: Trace, rows: Ids, run: Rows, count: int) -> Text:
    """The name of the function of each run, from the scopes of its operations; shape (runs,)."""
    programs = program_names(trace.events.text("scope")).take(rows)
    named, codes = programs.where(bool), np.full(count, _NONE, np.int32)
    codes[run[named]] = programs.codes[named]
    return Text(codes, programs.values)


def calls_in_order(begin: Times, calls: Ids, called: Times) -> Ids32:
    """The call of each run, both in order of start; the first runs may have been called before."""
    earlier = np.searchsorted(begin, called) - np.arange(len(called))
    before = max(len(begin) - len(calls), 0, int(earlier.max(initial=0)))
    result = np.full(len(begin), BEFORE_RECORDING, np.int32)
    linked = result[before:]
    linked[:] = calls[: len(linked)]
    return result


def _spread(parent: Ids32, run: Rows) -> Ids32:
    """The run of each event: its own, else of what is around it, else of the first inside it."""
    result = inherit(parent, run)
    rows = np.flatnonzero((result >= 0) & (parent >= 0))
    while len(rows):
        rows = rows[result[parent[rows]] < 0]
        result[parent[rows][::-1]] = result[rows][::-1]
        rows = np.unique(parent[rows])
        rows = rows[parent[rows] >= 0]
    return inherit(parent, result)


# -- waits

# XLA's names of `jax.device_put`, whose results a program may wait for too.
_PUT = re.compile(r"^(shard_args|BatchedDevicePut|DevicePut\w*)$")
_FOR_ARRAYS = re.compile(r"block_until_ready|BlockHostUntilReady")
_OTHER, _NONE = STAGES.index("other"), -1


class CallWaits(NamedTuple):
    """Waits of one thread, none within another, in order of start; arrays of shape (n,)."""

    starts: Times  # ns
    ends: Times  # ns
    stage: Codes  # what each waits for, a position in `STAGES`; -1 if that is not known

    def at(self, moments: Times) -> Codes:
        """The stage that the thread waits for at each moment, -1 where it does not wait."""
        return np.append(self.stage, _NONE)[running_span(self.starts, self.ends, moments)]


def waits_for_calls(trace: Trace, track: int) -> CallWaits:
    """The waits of a thread, each with the stage of the last call before it on this thread.

    A call of several stages, or of none that is known, counts as the last work that it ran. Who
    waits for arrays may wait for data that moves to a device; who reads a value waits for a
    program. A wait within a call is part of the call.
    """
    events = trace.events
    names, here = events.text("name"), events["track"] == track
    wait, call = here & names.where(is_wait), here & names.where(is_compiled_call)
    puts = here & names.where(lambda name: bool(_PUT.match(name)))
    outer = np.flatnonzero(outermost(events["parent"], wait | call | puts))
    waits = outer[wait[outer]]
    start, before = events["start_ns"], [outer[chosen[outer]] for chosen in (call, call | puts)]
    compiled, all_calls = (
        np.append(calls, _NONE)[last_begun(start[calls], start[waits])] for calls in before
    )
    blocks = names.take(waits).where(lambda name: bool(_FOR_ARRAYS.search(name)))
    of = np.where(blocks, all_calls, compiled)
    return CallWaits(*events.spans(waits), _stages(trace, of, compiled, waits))


def _stages(trace: Trace, of: Rows, compiled: Rows, waits: Rows) -> Codes:
    """The stage of what each wait waits for: of its call, else of the last work of its program."""
    events = trace.events
    stage = np.append(events["stage"].astype(np.int64), _NONE)[of]
    begin = np.append(events["start_ns"], np.iinfo(np.int64).max)[of]
    unknown = (of == compiled) & np.isin(stage, [_OTHER, _NONE])
    return np.where(unknown, _last_stage(trace, begin, events["start_ns"][waits]), stage)


def _last_stage(trace: Trace, begin: Times, end: Times) -> Codes:
    """The stage of the compiled work of the host that ended last in each span, -1 if none did."""
    events = trace.events
    rows: Ids = np.flatnonzero((events["scope"] >= 0) & on_host(trace))
    ended = events.spans(rows)[1]
    order = np.argsort(ended, kind="stable")
    rows, ended = rows[order], ended[order]
    last = last_begun(ended, end)
    began = np.append(events["start_ns"][rows], np.iinfo(np.int64).min)[last]
    stage = np.append(events["stage"][rows].astype(np.int64), _NONE)[last]
    return np.where((last >= 0) & (began >= begin), stage, _NONE)


# -- iterations of a loop

_HEAVY = 0.5  # of the time of the program that takes most: the training function may take less
_FEWEST = 2  # calls of a function that repeats


class LoopIterations(NamedTuple):
    """The iterations of a loop."""

    starts: Times  # start times, int64 ns, shape (iterations,)
    last_is_whole: bool  # whether the last iteration has all its calls


class _LoopCalls(NamedTuple):
    """Calls in order of start: which function (index of `names`), start and end, shape (calls,)."""

    names: Sequence[str]
    name: Codes32
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
    called = outermost(events["parent"], events.text("name").where(is_training_call))
    around = innermost(events["parent"], called)[rows]
    return events["start_ns"][np.where(around >= 0, around, rows)]


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
    return LoopIterations(starts, last >= int(starts[-1]))


def _calls(trace: Trace, track: int) -> _LoopCalls:
    events = trace.events
    called = events.text("name").where(is_compiled_call) & (events["track"] == track)
    rows = np.flatnonzero(outermost(events["parent"], called))
    functions = events.text("name").take(rows).compact().map(called_function)
    return _LoopCalls(functions.values, functions.codes, *events.spans(rows))


def _training_function(trace: Trace, calls: _LoopCalls) -> int | None:
    count = np.bincount(calls.name, minlength=len(calls.names))
    repeated = np.flatnonzero(count >= _FEWEST).tolist()
    if not repeated:
        return None
    trained = differentiated(trace)
    repeated = [name for name in repeated if calls.names[name] in trained] or repeated
    work = _work(trace)
    spent = {name: work[calls.names[name]] for name in repeated}
    if not any(spent.values()):
        lasted = calls.end - calls.start
        spent = {name: int(lasted[calls.of(name)].sum()) for name in repeated}
    most = max(spent.values())
    heavy = [name for name in repeated if spent[name] >= _HEAVY * most]
    return min(heavy, key=lambda name: (count[name], -calls.end[calls.of(name)][-1]))


def differentiated(trace: Trace) -> set[str]:
    """The functions of programs that have a backward pass."""
    texts = trace.events.text("scope").values
    return {scope_of(text).program for text in texts if "transpose(" in text}


def _work(trace: Trace) -> Counter[str]:
    """Time of the operations of each program, by name of its function, ns."""
    names = program_names(trace.events.text("scope"))
    scoped = names.codes >= 0
    spent = np.bincount(names.codes[scoped], trace.events["self_ns"][scoped], len(names.values))
    return Counter(dict(zip(names.values, map(round, spent.tolist()), strict=True)))


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
