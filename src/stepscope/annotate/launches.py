"""Which CPU call started which device work."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.annotate.tracks import device_work, marked_on_devices
from stepscope.trace.schema import DEVICE_WORK, LAUNCHES
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

Rows = NDArray[np.int32]
_EVIDENCE = ("correlation", "flow")
_NOWHERE = "belongs to no step and no stage"


def link_launches(trace: Trace) -> Trace:
    """Link device work to its launch by correlation, else by flow arrow.

    One call may start many pieces of work (a CUDA graph). Work that neither tells of stays
    unlinked, is counted in a warning, and belongs to no step and no stage.

    Source: the trace-event output of libkineto: `args.correlation`, and `ac2g` arrows.
    """
    events = trace.events
    device = np.flatnonzero(device_work(trace)).astype(np.int32)
    caller = _by_correlation(events, device)
    evidence = np.where(caller >= 0, 0, 1).astype(np.int8)
    loose = caller < 0
    caller[loose] = _by_flow(trace, device[loose])
    linked = caller >= 0
    table = Table(
        LAUNCHES,
        {
            "cpu_event": caller[linked],
            "device_event": device[linked],
            "delay_ns": events["start_ns"][device[linked]] - events["start_ns"][caller[linked]],
            "evidence": Text(evidence[linked], _EVIDENCE),
        },
    )
    return _tell(trace.with_table(table), device[~linked])


def launch_of(trace: Trace) -> Rows:
    """The CPU event that launched each event, int32, shape (events,), -1 where none is known."""
    caller = np.full(len(trace.events), -1, np.int32)
    caller[trace["launches"]["device_event"]] = trace["launches"]["cpu_event"]
    return caller


def _by_correlation(events: Table, device: Rows) -> Rows:
    """The outermost runtime call with the same correlation id, or -1."""
    calls = np.flatnonzero(events.text("category").mask("runtime") & (events["correlation"] >= 0))
    key = events["correlation"][calls]
    order = np.argsort(key, kind="stable")
    return _look_up(key[order], calls[order], events["correlation"][device])


def _by_flow(trace: Trace, device: Rows) -> Rows:
    """The CPU event at the tail of an arrow to the device work, or -1."""
    flows = trace["flows"]
    tied = (flows["source_event"] >= 0) & (flows["target_event"] >= 0)
    source, target = flows["source_event"][tied], flows["target_event"][tied]
    on_cpu = ~trace.events.text("category").mask(*DEVICE_WORK)[source]
    source, target = source[on_cpu], target[on_cpu]
    order = np.argsort(target, kind="stable")
    return _look_up(target[order], source[order], device)


def _look_up(
    keys: NDArray[np.integer], values: NDArray[np.integer], wanted: NDArray[np.integer]
) -> Rows:
    """The value of the first equal key in sorted `keys`, or -1; a wanted -1 finds nothing."""
    if not len(keys):
        return np.full(len(wanted), -1, np.int32)
    index = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    found = (keys[index] == wanted) & (wanted >= 0)
    return np.where(found, values[index], -1).astype(np.int32)


def _tell(trace: Trace, unlinked: Rows) -> Trace:
    """Warn of unlinked work, apart from what was launched before the recording began."""
    events = trace.events
    first = events["correlation"][events.text("category").mask("runtime")]
    first = first[first >= 0].min(initial=np.iinfo(np.int64).max)
    earlier = (events["correlation"][unlinked] >= 0) & (events["correlation"][unlinked] < first)
    earlier &= bool(len(trace["launches"]))
    said = {
        "launched_before_recording": ("device work launched before the recording began", earlier),
        "unlinked_device_work": ("device work without a launch in the file", ~earlier),
    }
    where = "is of the step it runs in" if marked_on_devices(trace) else _NOWHERE
    return trace.with_warnings(
        (code, _message(events, what, unlinked[mask], where), int(mask.sum()))
        for code, (what, mask) in said.items()
        if mask.any()
    )


def _message(events: Table, what: str, rows: Rows, where: str) -> str:
    total = events["duration_ns"][rows].sum() / 1e6
    return f"{what} ({total:.3f} ms in all); it {where}"
