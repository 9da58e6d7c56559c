"""Link device work without a correlation id: by external id, or by order in time."""

from __future__ import annotations

import re

import numpy as np

from stepscope.annotate.links.launch_sides import on_host
from stepscope.arrays import Codes8, Ids, Ids32, Mask
from stepscope.trace.nesting import inherit
from stepscope.trace.schema import DEVICE_WORK
from stepscope.trace.table import Text
from stepscope.trace.trace import Trace

_EXTERNAL_ID = re.compile(rb'"external id"\s*:\s*"?(\d+)', re.IGNORECASE)
_COPY = re.compile(r"mem_?cpy|memory_?copy|mem_?buffer_?copy|dma", re.IGNORECASE)
_SET = re.compile(r"mem_?set|buffer_?fill", re.IGNORECASE)
_LAUNCH = re.compile(r"launch", re.IGNORECASE)
_KERNEL, _MEMCPY, _MEMSET, _NO_LAUNCH = 0, 1, 2, -1
_MOSTLY = 0.5  # where most work of a track has a correlation id, the rest is not linked by order
_ALIKE = 0.8  # calls and work of one kind must be about as many to be linked by order


def by_external_id(trace: Trace, device: Ids32) -> Ids32:
    """The operator with the same `External id`, or its launch call, or -1.

    An operator with as many launch calls inside as it has device work of a kind launches them one
    by one, in order.

    Args:
        trace: a trace as read from a file.
        device: event ids of device work, ascending, shape (n,).

    Source: `args."External id"` in the trace-event output of libkineto.
    """
    wanted = _external_ids(trace, device)
    result = np.full(len(device), -1, np.int32)
    if not (wanted >= 0).any():
        return result
    operators = np.flatnonzero(trace.events.text("category").mask("cpu_op") & on_host(trace))
    ids = _external_ids(trace, operators)
    order = np.lexsort((operators, ids))
    operators, ids = operators[order], ids[order]
    place = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1) if len(ids) else wanted * 0
    found = (wanted >= 0) & bool(len(ids)) & (ids[place] == wanted if len(ids) else False)
    result[found] = operators[place[found]]
    return _through_calls(trace, device, result)


def by_order(trace: Trace, device: Ids32, caller: Ids32) -> Ids32:
    """Link the unlinked work of each kind to the unused launch calls, in order of time.

    Only tracks that hardly carry correlation ids are linked this way, and only if there are about
    as many calls as pieces of work. No work starts before its call.

    Args:
        trace: a trace as read from a file.
        device: event ids of all device work, ascending, shape (n,).
        caller: the CPU event that launched each, -1 if unknown, shape (n,).

    Returns:
        int32, shape (n,): the call for work that was linked here, else -1.
    """
    events = trace.events
    result = np.full(len(device), -1, np.int32)
    candidates = _uncorrelated(trace, device) & (caller < 0)
    calls, call_kind = _launch_calls(trace)
    unused = ~np.isin(calls, caller)
    kind = _kind_of_work(events.text("category"), device)
    for code in (_KERNEL, _MEMCPY, _MEMSET):
        work = np.flatnonzero(candidates & (kind == code))
        free = calls[unused & (call_kind == code)]
        if min(len(work), len(free)) < _ALIKE * max(len(work), len(free), 1):
            continue
        work = work[np.argsort(events["start_ns"][device[work]], kind="stable")]
        begin, called = events["start_ns"][device[work]], np.sort(events["start_ns"][free])
        result[work] = _in_order(begin, called, free[np.argsort(events["start_ns"][free])])
    return result


def _in_order(begin: Ids, called: Ids, calls: Ids) -> Ids32:
    """Give each piece of work, in order of start, the next call that began before it."""
    result = np.full(len(begin), -1, np.int32)
    following = 0
    for row, time in enumerate(begin.tolist()):
        if following < len(calls) and called[following] <= time:
            result[row] = calls[following]
            following += 1
    return result


def _external_ids(trace: Trace, rows: Ids32 | Ids) -> Ids:
    """The external id among the arguments of each event, -1 without one."""
    source = trace.events["source"][rows].astype(np.int64)
    order = np.argsort(source, kind="stable")
    result = np.full(len(rows), -1, np.int64)
    texts = trace.arguments.texts(source[order]) if len(rows) else []
    result[order] = [int(m[1]) if (m := _EXTERNAL_ID.search(text)) else -1 for text in texts]
    return result


def _through_calls(trace: Trace, device: Ids32, operator: Ids32) -> Ids32:
    """Replace an operator by the launch calls inside it, if they are as many as its work."""
    events = trace.events
    calls, call_kind = _launch_calls(trace)
    is_operator = events.text("category").mask("cpu_op")
    inside = inherit(events["parent"], np.where(is_operator, events["id"], -1))[calls]
    kind = _kind_of_work(events.text("category"), device)
    work_key = np.where(operator >= 0, operator.astype(np.int64) * 3 + kind, -1)
    call_key = np.where(
        (inside >= 0) & (call_kind >= 0), inside.astype(np.int64) * 3 + call_kind, -2
    )
    keys, position = np.unique(np.concatenate([work_key, call_key]), return_inverse=True)
    of_work, of_call = position[: len(device)], position[len(device) :]
    same = np.bincount(of_work, minlength=len(keys)) == np.bincount(of_call, minlength=len(keys))
    work = np.flatnonzero(same[of_work] & (work_key >= 0))
    chosen = np.flatnonzero(same[of_call] & (call_key >= 0))
    start = events["start_ns"]
    work = work[np.lexsort((start[device[work]], of_work[work]))]
    chosen = chosen[np.lexsort((start[calls[chosen]], of_call[chosen]))]
    result = operator.copy()
    result[work] = calls[chosen]
    return result


def _launch_calls(trace: Trace) -> tuple[Ids, Codes8]:
    """The outermost runtime calls that launch device work, and the kind of work."""
    events = trace.events
    runtime = events.text("category").mask("runtime")
    kinds = events.text("name").map(lambda name: str(_kind_of_call(name)))
    table = np.array([*(int(value) for value in kinds.values), _NO_LAUNCH], np.int8)
    kind = np.where(runtime, table[kinds.codes], _NO_LAUNCH)
    around = inherit(events["parent"], np.where(kind >= 0, 1, -1))
    nested = (events["parent"] >= 0) & (around[events["parent"]] > 0)
    rows = np.flatnonzero((kind >= 0) & ~nested)
    return rows, kind[rows].astype(np.int8)


def _kind_of_call(name: str) -> int:
    if _COPY.search(name):
        return _MEMCPY
    if _SET.search(name):
        return _MEMSET
    return _KERNEL if _LAUNCH.search(name) else _NO_LAUNCH


def _kind_of_work(category: Text, device: Ids32) -> Codes8:
    kind = np.full(len(device), _KERNEL, np.int8)
    kind[category.mask("memcpy")[device]] = _MEMCPY
    kind[category.mask("memset")[device]] = _MEMSET
    return kind


def _uncorrelated(trace: Trace, device: Ids32) -> Mask:
    """Device work on tracks that hardly carry correlation ids."""
    events = trace.events
    correlated = events["correlation"][device] >= 0
    tracks = len(trace["tracks"])
    whole = np.bincount(events["track"][device], minlength=tracks)
    known = np.bincount(events["track"][device[correlated]], minlength=tracks)
    bare = (known < _MOSTLY * whole)[events["track"][device]]
    result: Mask = bare & ~correlated & events.text("category").mask(*DEVICE_WORK)[device]
    return result
