"""Link device work to the CPU call that launched it."""

from __future__ import annotations

import numpy as np

from stepscope.annotate.links.launch_fallbacks import by_external_id, by_order
from stepscope.annotate.links.launch_sides import device_work, marked_on_devices
from stepscope.arrays import Ids32, IntArray, Mask
from stepscope.trace.recorded_steps import milliseconds
from stepscope.trace.schema import DEVICE_WORK, LAUNCHES
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

_CERTAIN = ("correlation", "flow")
_CLOCKS_AGREE_NS = 10_000  # no recorder is more exact
_FEW_EARLY = 0.01  # of all launches
_EVIDENCE = ("correlation", "flow", "external_id", "order")
_FALLBACKS = {
    "external_id": "their operator's external id: there is no correlation id",
    "order": "order in time: there is no correlation id",
}


def link_launches(trace: Trace) -> Trace:
    """Link device work to its launch: by correlation, flow arrow, external id, or order in time.

    One call may start many pieces of work (a CUDA graph). The table `launches` records the evidence
    of each link. Work that remains unlinked is counted in a warning.

    Source: the trace-event output of libkineto: `args.correlation`, `ac2g` arrows,
    `args."External id"`.
    """
    events = trace.events
    device = np.flatnonzero(device_work(trace)).astype(np.int32)
    caller = _by_correlation(events, device)
    evidence = np.zeros(len(device), np.int8)
    for code, link in ((1, _by_flow), (2, by_external_id)):
        unlinked = np.flatnonzero(caller < 0)
        caller[unlinked] = link(trace, device[unlinked])
        evidence[unlinked] = code
    ordered = by_order(trace, device, caller) if (caller < 0).any() else caller
    evidence[(caller < 0) & (ordered >= 0)] = 3
    caller = np.where(caller < 0, ordered, caller)
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
    trace = _warn_clocks(_warn_fallbacks(trace.with_table(table)))
    return _warn_unlinked(trace, device[~linked])


def launch_of(trace: Trace) -> Ids32:
    """The CPU event that launched each event, int32, shape (events,), -1 where none is known."""
    caller = np.full(len(trace.events), -1, np.int32)
    caller[trace["launches"]["device_event"]] = trace["launches"]["cpu_event"]
    return caller


def _by_correlation(events: Table, device: Ids32) -> Ids32:
    """The outermost runtime call with the same correlation id, or -1."""
    calls = np.flatnonzero(events.text("category").mask("runtime") & (events["correlation"] >= 0))
    key = events["correlation"][calls]
    order = np.argsort(key, kind="stable")
    return _look_up(key[order], calls[order], events["correlation"][device])


def _by_flow(trace: Trace, device: Ids32) -> Ids32:
    """The CPU event at the tail of an arrow to the device work, or -1."""
    flows = trace["flows"]
    tied = (flows["source_event"] >= 0) & (flows["target_event"] >= 0)
    source, target = flows["source_event"][tied], flows["target_event"][tied]
    on_cpu = ~trace.events.text("category").mask(*DEVICE_WORK)[source]
    source, target = source[on_cpu], target[on_cpu]
    order = np.argsort(target, kind="stable")
    return _look_up(target[order], source[order], device)


def _look_up(keys: IntArray, values: IntArray, wanted: IntArray) -> Ids32:
    """The value of the first equal key in sorted `keys`, or -1; -1 itself is never found."""
    if not len(keys):
        return np.full(len(wanted), -1, np.int32)
    index = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    found = (keys[index] == wanted) & (wanted >= 0)
    return np.where(found, values[index], -1).astype(np.int32)


def _warn_fallbacks(trace: Trace) -> Trace:
    """Warn about launches that are linked by weaker evidence than a correlation id or an arrow."""
    evidence = trace["launches"].text("evidence")
    counts = {name: int(evidence.mask(name).sum()) for name in _FALLBACKS}
    return trace.with_warnings(
        (f"linked_by_{name}", f"device work is linked to its launches by {_FALLBACKS[name]}", count)
        for name, count in counts.items()
        if count
    )


def _warn_clocks(trace: Trace) -> Trace:
    """Warn where device work starts before its launch, as no device can."""
    launches = trace["launches"]
    early = launches["delay_ns"] < -_CLOCKS_AGREE_NS
    early &= launches.text("evidence").mask(*_CERTAIN)
    if early.sum() <= _FEW_EARLY * len(launches):
        return trace
    most = -int(launches["delay_ns"][early].min()) / 1e6
    message = (
        f"device work starts up to {most:.3g} ms before its launch: the clocks of CPU and device "
        "differ, so causes of idle time are uncertain"
    )
    return trace.with_warnings([("device_clock", message, int(early.sum()))])


def _warn_unlinked(trace: Trace, unlinked: Ids32) -> Trace:
    """Warn about unlinked work; work launched before the recording is reported separately."""
    before = launched_before_recording(trace)[unlinked]
    unknown = "belongs to the step in which it runs"
    if not marked_on_devices(trace):
        unknown += "; its stage is unknown"
    messages = {
        "launched_before_recording": (
            "device work launched before the recording began",
            "belongs to no step, but the device counts as busy",
            before,
        ),
        "unlinked_device_work": ("device work without a launch in the file", unknown, ~before),
    }
    return trace.with_warnings(
        (code, _message(trace.events, what, unlinked[mask], where), int(mask.sum()))
        for code, (what, where, mask) in messages.items()
        if mask.any()
    )


def launched_before_recording(trace: Trace) -> Mask:
    """Device work whose correlation id precedes all recorded calls, bool, shape (events,)."""
    events = trace.events
    unlinked = device_work(trace)
    unlinked[trace["launches"]["device_event"]] = False
    if not len(trace["launches"]) or not unlinked.any():
        return np.zeros(len(events), np.bool_)
    ids = events["correlation"]
    calls = ids[events.text("category").mask("runtime") & (ids >= 0)]
    if not len(calls):
        return np.zeros(len(events), np.bool_)
    result: Mask = unlinked & (ids >= 0) & (ids < calls.min())
    return result


def _message(events: Table, what: str, rows: Ids32, where: str) -> str:
    total = milliseconds(events["duration_ns"][rows].sum())
    return f"{what} ({total} in all); it {where}"
