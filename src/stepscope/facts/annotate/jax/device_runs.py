"""Runs of compiled programs on devices: which call asked for each, by their order.

A call of JAX returns before its work is done, up to dozens of programs ahead of a device. What launches the
work is another thread, as late as the device needs it, or not in the file at all. A device runs programs in
the order of their calls, so the k-th run of a program belongs to its k-th call. A run is what the device's
own line of programs says; else it begins with the operation that occurs as often as the program was called.
"""

import re
from typing import Any, NamedTuple

import numpy as np

from stepscope.base.arrays import Ids, Ids32, Mask, Rows, Times
from stepscope.facts.annotate.jax.calls import (
    UNKNOWN,
    call_around,
    called_function,
    calls_in_order,
    is_compiled_call,
)
from stepscope.facts.annotate.jax.scopes import scope_of
from stepscope.facts.annotate.links.launches import device_work, launch_of, on_host, with_launches_by_order
from stepscope.trace.nesting import outermost
from stepscope.trace.row_order import rows_by_key, running_span
from stepscope.trace.sets import mask_of
from stepscope.trace.table import Text
from stepscope.trace.trace import Trace

Texts = np.ndarray[Any, np.dtype[np.object_]]
_MODULE = re.compile(rb'"hlo_module"\s*:\s*"(?:jit|pmap)_([^"]*)"')
_RUN = re.compile(r"^(?:jit|pmap)_(.*)\(\d+\)$", re.DOTALL)  # of a program, on a device's line of programs
_NO_LETTER = re.compile(r"\W")
_PAUSE = 2  # times the usual pause before an operation: the device waited for the next call there


class _Runs(NamedTuple):
    """Runs of programs in order: when they begin, their functions, and which one each work is in."""

    starts: Ids
    functions: Text
    of_work: Rows


def link_programs(trace: Trace) -> Trace:
    """Link work to the calls of its programs on devices of which no work is linked to a launch."""
    call = calls_of_device_work(trace)
    work = np.flatnonzero(call >= 0).astype(np.int32)
    device = trace["tracks"]["device"][trace.events["track"]]
    linked = np.unique(device[trace["launches"]["device_event"]])
    work = work[~np.isin(device[work], linked)]
    return with_launches_by_order(trace, call[work], work)


def call_times(trace: Trace) -> Times:
    """When the work of each row of `launches` was called for, int64, ns, shape (launches,).

    It is the start of the call of the program, else of the launch; -1 before the recording.
    """
    launches, begin = trace["launches"], trace.events["start_ns"]
    call = calls_of_device_work(trace)[launches["device_event"]]
    asked = np.where(call >= 0, begin[call], -1)
    return np.where(call == UNKNOWN, begin[launches["cpu_event"]], asked).astype(np.int64)


def calls_of_device_work(trace: Trace) -> Ids32:
    """The call of a compiled function that asked for each piece of device work, by order.

    Work that is launched within the call needs no such link.

    Returns:
        int32, shape (events,): the event of the call; `UNKNOWN` of all other events, and
        `BEFORE_RECORDING` of work that was called for before the recording began.
    """
    result = np.full(len(trace.events), UNKNOWN, np.int32)
    calls = _calls(trace)
    if not calls:
        return result
    work, caller = np.flatnonzero(device_work(trace)), launch_of(trace)
    work = work[(caller[work] < 0) | (call_around(trace)[caller[work]] < 0)].astype(np.int32)
    device = trace["tracks"]["device"][trace.events["track"][work]]
    for number in np.unique(device).tolist():
        rows = work[device == number]
        runs = _recorded_runs(trace, rows) or _repeated_runs(trace, rows, calls)
        launched = bool((caller[rows] >= 0).any())
        result[rows] = _calls_of_runs(trace, runs, calls, launched)[runs.of_work]
    return result


def _calls_of_runs(trace: Trace, runs: _Runs, calls: dict[str, Ids], launched: bool) -> Ids32:
    """The call of each run, and last `UNKNOWN` for work in none.

    Where runs are missing, launches (if there are any) show more than the order.
    """
    result = np.full(len(runs.starts) + 1, UNKNOWN, np.int32)
    for name, called in calls.items():
        own = np.flatnonzero(runs.functions.mask(name))
        if len(own) >= len(called) or not launched:
            result[own] = calls_in_order(runs.starts[own], called, trace.events["start_ns"][called])
    return result


def _calls(trace: Trace) -> dict[str, Ids]:
    """The calls of each compiled function by its name in a program, in order of start."""
    events = trace.events
    names = events.text("name")
    rows = np.flatnonzero(outermost(events["parent"], names.where(is_compiled_call) & on_host(trace)))
    functions = names.take(rows).compact().map(lambda name: as_module(called_function(name)))
    return {functions.values[code]: rows[part] for code, part in rows_by_key(functions.codes).items()}


def as_module(function: str) -> str:
    """A function's name as XLA writes it in the name of a program."""
    return _NO_LETTER.sub("_", function).removesuffix("_")


def _recorded_runs(trace: Trace, work: Ids32) -> _Runs | None:
    """The runs of programs on one device by its line of programs, if it has one."""
    events = trace.events
    process = trace["tracks"].text("process").codes[events["track"]]
    names = events.text("name")
    runs = np.flatnonzero(names.where(lambda name: bool(_RUN.match(name))))
    runs = runs[np.isin(process[runs], np.unique(process[work]))]
    if not len(runs):
        return None
    starts, ends = events.spans(runs)
    place = running_span(starts, ends, events["start_ns"][work])
    functions = names.take(runs).compact().map(lambda name: as_module(_RUN.sub(r"\1", name)))
    return _Runs(starts, functions, np.where(place >= 0, place, len(runs)))


def _repeated_runs(trace: Trace, work: Ids32, calls: dict[str, Ids]) -> _Runs:
    function = functions_of_work(trace, work)
    repeated = [name for name, called in calls.items() if len(called) > 1]
    if len(repeated) == 1 and not (function != "").any():
        function[:] = repeated[0]  # nothing names programs, and a loop has one
    starts: list[Ids] = []
    functions: list[str] = []
    of_work = np.full(len(work), -1, np.int64)
    for name, called in calls.items():
        rows = np.flatnonzero(function == name)
        first = _first_of_runs(trace, work[rows], len(called)) if len(rows) else np.zeros(0, np.bool_)
        run = np.cumsum(first) - 1
        of_work[rows] = np.where(run >= 0, run + len(functions), -1)
        starts.append(trace.events["start_ns"][work[rows[first]]])
        functions += [name] * int(first.sum())
    of_work = np.where(of_work < 0, len(functions), of_work)
    return _Runs(np.concatenate(starts), Text.of(functions), of_work)


def functions_of_work(trace: Trace, work: Ids32 | Rows) -> Texts:
    """The function of each piece of work: by its scope, else as it or its launch says; else empty."""
    scopes = trace.events.text("scope")
    programs = np.array([as_module(scope_of(text).program) for text in scopes.values] + [""], object)
    functions, launch = programs[scopes.codes[work]], launch_of(trace)[work]
    for recorded in (work, launch):
        rows = np.flatnonzero((functions == "") & (recorded >= 0))
        named = map(_MODULE.search, trace.arguments.texts(trace.events["source"][recorded[rows]]))
        functions[rows] = [as_module(found[1].decode()) if found else "" for found in named]
    return functions


def _first_of_runs(trace: Trace, work: Ids32, calls: int) -> Mask:
    """Whether each piece of work begins a run of its program.

    The operation that occurs about as often as the program was called marks runs. Of several, a run
    begins with that before which the device waits longest, else with the first. Where all work was
    launched in the recording, no run is from before it: what occurs more often does so in a loop.
    """
    names = trace.events["name"][work]
    distinct, first, count = np.unique(names, return_index=True, return_counts=True)
    likely = np.flatnonzero(np.abs(count - calls) == np.abs(count - calls).min())
    likely = likely[np.argsort(first[likely])]
    waits = [_median_pause(trace, work, names == distinct[place]) for place in likely.tolist()]
    longest = int(np.argmax(waits))
    notable = waits[longest] > _PAUSE * float(np.median(waits))
    marking = np.flatnonzero(names == distinct[likely[longest if notable else 0]])
    in_loop = (launch_of(trace)[work] >= 0).all() and len(marking) % calls == 0
    return mask_of(marking[:: len(marking) // calls if in_loop else 1], len(work))


def _median_pause(trace: Trace, work: Ids32, chosen: Mask) -> float:
    """The median time that no work runs before the chosen work, ns."""
    start, end = trace.events.spans(work)
    busy_until = np.append(start[0], np.maximum.accumulate(end)[:-1])
    rows: Rows = np.flatnonzero(chosen)[1:]
    return float(np.median(np.maximum(start[rows] - busy_until[rows], 0))) if len(rows) else 0.0
