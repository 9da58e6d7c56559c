"""When a device computes nothing, and why."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.annotate.launches import launch_of
from stepscope.annotate.steps import main_track
from stepscope.annotate.tracks import device_work
from stepscope.trace.intervals import Intervals
from stepscope.trace.schema import IDLE, IDLE_CAUSES, STAGES
from stepscope.trace.sets import distinct
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

Mask = NDArray[np.bool_]
Times = NDArray[np.int64]
Spans = list[tuple[int, int, int]]
_WAITS = re.compile(
    r"Synchronize|^(cuda|hip)Memcpy(2D|3D)?$|^cuMemcpy\w*(HtoD|DtoH)(_v2)?$|StreamWaitValue"
    r"|BlockHostUntilReady|Buffer::Await$"
)
_LEAST_NS = 1


def find_idle(trace: Trace) -> Trace:
    """Fill the table of idle time: each device's gaps in computing within each step, by cause.

    A gap ends with the next piece of work. Until the CPU calls for it, the gap is for want of data
    while the training loop loads data, for synchronisation if the CPU was waiting for the
    device as it ran dry, and for the host's slowness otherwise; after the call, it is the launch's
    latency or a wait for another stream. Time in which only communication runs is communication.
    """
    spans = windows(trace)
    devices = distinct(trace["tracks"]["device"][trace.events["track"][device_work(trace)]])
    found = [_of_device(trace, int(device), spans) for device in devices]
    rows = [row for part in found for row in part]
    if not rows:
        return trace
    step, device, start, end, cause = (np.array(column) for column in zip(*rows, strict=True))
    columns: dict[str, Any] = {
        "step": step,
        "rank": np.full(len(rows), trace.metadata.ranks[0]),
        "device": device,
        "start_ns": start,
        "end_ns": end,
        "cause": Text(cause.astype(np.int8), IDLE_CAUSES),
    }
    return trace.with_table(Table(IDLE, columns))


def windows(trace: Trace) -> Spans:
    """(step, start, end) of each step as the device sees it.

    The device runs behind the CPU. Within a row of steps it works on one step while the CPU is in
    the next; the last of a row lasts until its own device work ends.
    """
    steps = trace["steps"]
    start, end, device_end = steps["start_ns"], steps["end_ns"], steps["device_end_ns"]
    followed = np.append(start[1:] <= end[:-1] + (end - start)[:-1] // 20, False)
    last = np.where(followed, end, np.maximum(end, device_end))
    return list(zip(steps["step"].tolist(), start.tolist(), last.tolist(), strict=True))


def _of_device(trace: Trace, device: int, spans: Spans) -> list[tuple[int, int, int, int, int]]:
    events = trace.events
    here = (trace["tracks"]["device"] == device)[events["track"]]
    work = np.flatnonzero(device_work(trace) & here)
    speaks = events.text("category").mask("communication")[work]
    start, end = events["start_ns"][work], (events["start_ns"] + events["duration_ns"])[work]
    computing = Intervals(start[~speaks], end[~speaks])
    speaking = Intervals(start[speaks], end[speaks]).minus(computing)
    busy = computing.union(speaking)
    causes = {"communication": speaking, **_gap_causes(trace, work, busy, spans)}
    return [
        (step, device, int(begin), int(finish), IDLE_CAUSES.index(cause))
        for step, first, last in spans
        for cause, intervals in causes.items()
        for part in (intervals.clip(first, last),)
        for begin, finish in zip(part.starts, part.ends, strict=True)
    ]


def _gap_causes(
    trace: Trace, work: NDArray[np.intp], busy: Intervals, spans: Spans
) -> dict[str, Intervals]:
    if not spans or not len(busy):
        return {}
    gaps = busy.gaps(min(span[1] for span in spans), max(span[2] for span in spans))
    called = _next_call(trace, work, gaps)
    unasked_end = np.clip(called, gaps.starts, gaps.ends)
    before_call = Intervals(gaps.starts, unasked_end)
    launch = Intervals(unasked_end, gaps.ends)
    data = before_call.intersect(_data_loading(trace))
    drained = _drained(gaps, _waiting(trace, work))
    waits = Intervals(gaps.starts[drained], unasked_end[drained]).minus(data)
    host = before_call.minus(data).minus(waits)
    return {"data": data, "synchronisation": waits, "host": host, "launch": launch}


def _next_call(trace: Trace, work: NDArray[np.intp], gaps: Intervals) -> Times:
    """When the CPU called for the work that ends each gap; the gap's end where none is known."""
    if not len(gaps):
        return gaps.ends
    caller = launch_of(trace)[work]
    start = trace.events["start_ns"][work]
    index = np.minimum(np.searchsorted(start, gaps.ends, side="left"), len(work) - 1)
    known = (caller[index] >= 0) & (start[index] == gaps.ends)
    return np.where(known, trace.events["start_ns"][caller[index]], gaps.ends)


def _data_loading(trace: Trace) -> Intervals:
    runs = trace["stages"]
    loading = runs["stage"] == STAGES.index("data_loading")
    return Intervals(runs["start_ns"][loading], runs["end_ns"][loading])


def _waiting(trace: Trace, work: NDArray[np.intp]) -> Intervals:
    """When the training loop's thread, or autograd's, stood waiting for the device."""
    events = trace.events
    end = events["start_ns"] + events["duration_ns"]
    waits = events.text("category").mask("runtime") & events.text("name").where(
        lambda name: bool(_WAITS.search(name))
    )
    caller = launch_of(trace)[work]
    copy = (caller >= 0) & events.text("category").mask("memcpy")[work]
    copied = work[copy]
    blocking = caller[copy][end[caller[copy]] >= end[copied]]
    waits[blocking] = True
    waits &= (events["stage"] >= 0) | (events["track"] == main_track(trace))
    return Intervals(events["start_ns"][waits], end[waits])


def _drained(gaps: Intervals, waiting: Intervals) -> Mask:
    """Gaps at whose beginning the CPU was waiting for the device."""
    result: Mask = waiting.within(gaps.starts - _LEAST_NS, gaps.starts + _LEAST_NS) > 0
    return result
