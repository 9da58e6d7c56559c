"""Where a CPU call waits for the device: synchronisations, and copies that block."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from stepscope.graph.device import Work
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

Ids = NDArray[np.int64]
Times = NDArray[np.int64]
_ALL_STREAMS = re.compile(r"^(cuda|hip)DeviceSynchronize|^cuCtxSynchronize|^(cuda|hip)Free$")
_ONE = re.compile(r"^(cuda|hip)(Stream|Event)Synchronize|^cu(Stream|Event)Synchronize")
_NEVER = int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class Waits:
    """Pairs of a waiting call (events.id) and the row of `Work` that it waits for."""

    call: Ids
    work: Ids


def find_waits(trace: Trace, rows: Ids, work: Work) -> Waits:
    """Which of the CPU events `rows` wait for which work.

    A call waits for what was launched before it and ended before it returned: a device
    synchronisation for the last of every stream; one of a stream or an event for the stream and
    the record that its `cuda_sync` event names, else for what ended last; a copy for itself, if it
    ended before its call did.

    Source: DAYDREAM section 4.2.2, "CUDA Synchronization".
    """
    call, found = _copies(trace, work)
    calls, works = [call], [found]
    names = trace.events.text("name")
    for pattern, choose in ((_ALL_STREAMS, _every_stream), (_ONE, _one_stream)):
        waiting = rows[names.where(partial(_matches, pattern))[rows]]
        call, found = choose(trace, waiting, work)
        calls.append(call)
        works.append(found)
    return Waits(np.concatenate(calls), np.concatenate(works))


def _copies(trace: Trace, work: Work) -> tuple[Ids, Ids]:
    copy = trace.events.text("category").mask("memcpy")[work.event] & (work.call >= 0)
    blocking = np.flatnonzero(copy & (_ends(trace.events)[work.call] >= work.end_ns))
    return work.call[blocking], blocking


def _every_stream(trace: Trace, calls: Ids, work: Work) -> tuple[Ids, Ids]:
    last = _last_per_stream(trace, calls, work)
    here, stream = np.nonzero(last >= 0)
    return calls[here], last[here, stream]


def _one_stream(trace: Trace, calls: Ids, work: Work) -> tuple[Ids, Ids]:
    last = _last_per_stream(trace, calls, work)
    told = _told(trace, calls)
    for row, call in enumerate(calls.tolist()):
        if call in told:
            last[row] = _of_stream(trace, work, last[row], told[call])
    if not last.size:
        return calls[:0], calls[:0]
    end = np.where(last >= 0, work.end_ns[last], -1)
    latest = last[np.arange(len(calls)), end.argmax(axis=1)]
    return calls[latest >= 0], latest[latest >= 0]


def _last_per_stream(trace: Trace, calls: Ids, work: Work) -> Ids:
    """For each call and stream, the last work launched before it that ended before it returned."""
    begin, end = trace.events["start_ns"][calls], _ends(trace.events)[calls]
    columns = []
    for rows in work.streams:
        launched = np.maximum.accumulate(work.called_ns[rows])
        count = np.minimum(
            np.searchsorted(launched, begin, side="left"),
            np.searchsorted(work.end_ns[rows], end, side="right"),
        )
        columns.append(np.where(count > 0, rows.start + count - 1, -1))
    return np.stack(columns, axis=1) if columns else np.zeros((len(calls), 0), np.int64)


def _told(trace: Trace, calls: Ids) -> dict[int, tuple[int, int]]:
    """Of calls with a `cuda_sync` event: the stream, and the moment of the record waited for."""
    events = trace.events
    known = calls[events["correlation"][calls] >= 0]
    by_correlation = {int(events["correlation"][call]): int(call) for call in known}
    records = record_times(trace)
    result: dict[int, tuple[int, int]] = {}
    for row in np.flatnonzero(events.text("category").mask("sync")).tolist():
        call = by_correlation.get(int(events["correlation"][row]))
        if call is None:
            continue
        arguments = trace.event_arguments(row)
        stream = arguments.get("wait_on_stream", arguments.get("stream"))
        if isinstance(stream, int) and stream >= 0:
            result[call] = (stream, record_time(records, arguments))
    return result


def record_times(trace: Trace) -> dict[int, int]:
    """When events were recorded, ns, by the correlation of the call; of equal ones the first."""
    events = trace.events
    record = events.text("name").where(lambda name: name.endswith("EventRecord"))
    rows = np.flatnonzero(record & (events["correlation"] >= 0))[::-1]
    return dict(
        zip(events["correlation"][rows].tolist(), events["start_ns"][rows].tolist(), strict=True)
    )


def record_time(records: Mapping[int, int], arguments: Mapping[str, object]) -> int:
    """When the event that is waited for was recorded; never, where that is not told.

    Args:
        records: of `record_times`.
        arguments: of the `cuda_sync` event that waits.
    """
    record = arguments.get("wait_on_cuda_event_record_corr_id")
    return records.get(record, _NEVER) if isinstance(record, int) else _NEVER


def _of_stream(trace: Trace, work: Work, last: Ids, told: tuple[int, int]) -> Ids:
    """Only the work on the stream that was told, launched before the record."""
    stream, recorded = told
    result = np.full(len(last), -1, np.int64)
    for column, rows in enumerate(work.streams):
        if trace["tracks"]["stream"][work.track[rows.start]] == stream:
            before = np.searchsorted(np.maximum.accumulate(work.called_ns[rows]), recorded)
            result[column] = min(last[column], rows.start + int(before) - 1)
            result[column] = result[column] if result[column] >= rows.start else -1
    return result


def _matches(pattern: re.Pattern[str], name: str) -> bool:
    return pattern.match(name) is not None


def _ends(events: Table) -> Times:
    end: Times = events["start_ns"] + events["duration_ns"]
    return end
