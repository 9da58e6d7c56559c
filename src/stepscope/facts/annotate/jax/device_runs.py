"""Runs of compiled programs on a device, linked to the calls that started them by their order.

JAX's profile as JSON has no id that a call and its run share, and a recorder may drop the calls of
the driver that had one. A device runs programs in the order of their calls, so the k-th run of a
program belongs to its k-th call.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from stepscope.base.arrays import Ids, Ids32, Mask, Rows
from stepscope.facts.annotate.jax.calls import called_function, calls_in_order, is_compiled_call
from stepscope.facts.annotate.links.launches import device_work, launch_of, on_host, with_launches_by_order
from stepscope.trace.nesting import outermost
from stepscope.trace.trace import Trace

Texts = np.ndarray[Any, np.dtype[np.object_]]
_MODULE = re.compile(rb'"hlo_module"\s*:\s*"jit_([^"]*)"')
_NO_LETTER = re.compile(r"\W")
_PAUSE = 2  # times the usual pause before an operation: the device waited for the next call there


def link_programs(trace: Trace) -> Trace:
    """Link work of compiled programs to the calls of these programs, in order of time.

    Only on devices of which no work is linked to its launch: elsewhere unlinked work was launched
    before the recording.
    """
    calls = _calls(trace)
    work = np.flatnonzero(device_work(trace)).astype(np.int32)
    device = trace["tracks"]["device"][trace.events["track"][work]]
    linked = np.unique(device[launch_of(trace)[work] >= 0])
    work, device = work[~np.isin(device, linked)], device[~np.isin(device, linked)]
    if not calls or not len(work):
        return trace
    function = _functions(trace, work)
    caller = np.full(len(work), -1, np.int32)
    for name, called in calls.items():
        for number in np.unique(device[function == name]).tolist():
            rows = np.flatnonzero((function == name) & (device == number))
            caller[rows] = _callers(trace, work[rows], called)
    return with_launches_by_order(trace, caller[caller >= 0], work[caller >= 0])


def _calls(trace: Trace) -> dict[str, Ids]:
    """The calls of each compiled function by its name in a program, in order of start."""
    events = trace.events
    names = events.text("name")
    rows = np.flatnonzero(outermost(events["parent"], names.where(is_compiled_call) & on_host(trace)))
    functions = np.array([_as_module(called_function(names[row] or "")) for row in rows.tolist()], object)
    return {name: rows[functions == name] for name in set(functions.tolist())}


def _functions(trace: Trace, work: Ids32) -> Texts:
    """The function of the program that each piece of work belongs to, empty if not recorded."""
    source = trace.events["source"][work].astype(np.int64)
    order = np.argsort(source, kind="stable")
    functions = np.full(len(work), "", object)
    for row, text in zip(order.tolist(), trace.arguments.texts(source[order]), strict=True):
        if found := _MODULE.search(text):
            functions[row] = _as_module(found[1].decode())
    return functions


def _as_module(function: str) -> str:
    """A function's name as XLA writes it in the name of a program."""
    return _NO_LETTER.sub("_", function).removesuffix("_")


def _callers(trace: Trace, work: Ids32, calls: Ids) -> Ids32:
    """The call of each piece of a program's work on one device, in order of start; -1 for none."""
    begin = trace.events["start_ns"]
    first = _first_of_runs(trace, work, len(calls))
    run = np.cumsum(first) - 1
    linked = calls_in_order(begin[work[first]], calls, begin[calls])
    return np.where(run >= 0, np.append(linked, -1)[run], -1).astype(np.int32)


def _first_of_runs(trace: Trace, work: Ids32, calls: int) -> Mask:
    """Whether each piece of work begins a run of its program.

    The operation that occurs about as often as the program was called marks runs. Of several, a run
    begins with that before which the device waits longest, else with the first.
    """
    names = trace.events["name"][work]
    distinct, first, count = np.unique(names, return_index=True, return_counts=True)
    likely = np.flatnonzero(np.abs(count - calls) == np.abs(count - calls).min())
    likely = likely[np.argsort(first[likely])]
    waits = [_median_pause(trace, work, names == distinct[place]) for place in likely.tolist()]
    longest = int(np.argmax(waits))
    notable = waits[longest] > _PAUSE * float(np.median(waits))
    return np.asarray(names == distinct[likely[longest if notable else 0]])


def _median_pause(trace: Trace, work: Ids32, chosen: Mask) -> float:
    """The median time that no work runs before the chosen work, ns."""
    start, end = trace.events.spans(work)
    busy_until = np.append(start[0], np.maximum.accumulate(end)[:-1])
    rows: Rows = np.flatnonzero(chosen)[1:]
    return float(np.median(np.maximum(start[rows] - busy_until[rows], 0))) if len(rows) else 0.0
