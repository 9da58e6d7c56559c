"""The calls of collectives in some steps, and what tells one collective from another."""

from __future__ import annotations

import numpy as np

from stepscope.annotate.device.collectives import collective_key, is_communication_call
from stepscope.annotate.links.launches import launch_of
from stepscope.arrays import Ids, Ids32, Mask, Rows
from stepscope.trace.nesting import inherit
from stepscope.trace.trace import Trace

_ARGUMENTS = ("Collective name", "Process Group Name")


def collective_calls(trace: Trace, steps: Ids) -> tuple[Rows, list[tuple[str, ...]], Ids]:
    """The calls of all ranks in some steps.

    Args:
        trace: an annotated trace.
        steps: their numbers, shape (steps,).

    Returns:
        Events that communicate, shape (calls,); the distinct keys (kind, process group, its ranks
        and size); and the number of each call's key, shape (calls,).
    """
    calls = np.flatnonzero(_outermost(trace) & np.isin(trace.events["step"], steps))
    return calls, *_keys(trace, calls)


def _outermost(trace: Trace) -> Mask:
    """Communication of devices, or if none communicates of CPU threads; no calls inside others."""
    events = trace.events
    mine = events.text("category").mask("communication")
    on_device = trace["tracks"]["device"][events["track"]] >= 0
    mine = mine & on_device if (mine & on_device).any() else mine
    inside = np.append(mine, False)[events["parent"]]
    found: Mask = mine & ~inside
    return found


def _keys(trace: Trace, calls: Rows) -> tuple[list[tuple[str, ...]], Ids]:
    """Kind, process group, its ranks and size: the distinct ones, and the one of each call."""
    names = trace.events.text("name")
    around = _calls_around(trace)[_origins(trace, calls)]
    keys: dict[tuple[str, ...], int] = {}
    codes = []
    for row, call in zip(calls.tolist(), around.tolist(), strict=True):
        arguments = trace.event_arguments(row)
        if call >= 0 and not any(name in arguments for name in _ARGUMENTS):
            arguments = _arguments_around(trace, call)
        name = str(names[call if call >= 0 else row])
        codes.append(keys.setdefault(collective_key(name, arguments), len(keys)))
    return list(keys), np.array(codes, np.int64)


def _origins(trace: Trace, calls: Rows) -> Ids:
    """The launch of each call, itself for one of the CPU."""
    caller = launch_of(trace)[calls]
    found: Ids = np.where(caller >= 0, caller, calls)
    return found


def _calls_around(trace: Trace) -> Ids32:
    """For each event the innermost call of a communication library around it, -1 if none."""
    events = trace.events
    named = events.text("name").where(is_communication_call)
    named &= events.text("category").mask("cpu_op", "annotation", "communication")
    return inherit(events["parent"], np.where(named, events["id"], -1))


def _arguments_around(trace: Trace, call: int) -> dict[str, object]:
    """The arguments of the innermost event from `call` outward that names its process group."""
    parent = trace.events["parent"]
    while call >= 0:
        arguments = trace.event_arguments(call)
        if any(name in arguments for name in _ARGUMENTS):
            return dict(arguments)
        call = int(parent[call])
    return {}
