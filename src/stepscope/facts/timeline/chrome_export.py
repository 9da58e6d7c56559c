"""The raw events of an operation as a Chrome trace, for Perfetto and other tools.

Source: the Trace Event Format (Google, 2016), sections on complete, metadata and flow events.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from stepscope.base.arrays import Ids, Mask
from stepscope.facts.timeline.event_index import Index
from stepscope.trace.sets import mask_of
from stepscope.trace.trace import Trace

EVENT = "stepscope event"
_US = 1e-3  # microseconds in a nanosecond


class ChromeEvent(msgspec.Struct, kw_only=True):
    """One event of the Trace Event Format."""

    ph: str  # X for a slice, M for metadata, s and f for the ends of an arrow
    name: str  # of the slice, the metadata or the arrow
    pid: int  # number of the process or device
    tid: int | UnsetType = UNSET  # number of the thread or stream
    args: dict[str, Any]  # arguments as recorded; `stepscope event` is the id of the raw event
    cat: str | UnsetType = UNSET  # category
    ts: float | UnsetType = UNSET  # start in microseconds since the trace's start
    dur: float | UnsetType = UNSET  # duration in microseconds
    id: int | UnsetType = UNSET  # number of the arrow
    bp: str | UnsetType = UNSET  # e at the end of an arrow


class ChromeTrace(msgspec.Struct):
    """Raw events in the Trace Event Format, as Perfetto reads it."""

    displayTimeUnit: str
    traceEvents: list[ChromeEvent]


def chrome_trace(index: Index, events: Ids) -> ChromeTrace:
    """Some events as a Chrome trace.

    It has a slice for each event, on its thread or stream; an arrow for each launch, and each arrow
    recorded, with both ends among the events; the names of threads. `args["stepscope event"]` is
    the event's id. Times are microseconds since the trace's start.
    """
    trace = index.trace
    tracks = np.unique(index.track[events]).tolist()
    places = {track: (number, track + 1) for track, number in _processes(trace, tracks).items()}
    exported = [*_labels(trace, places), *_slices(trace, events, places), *_arrows(index, events, places)]
    return ChromeTrace("ns", exported)


_Places = dict[int, tuple[int, int]]


def _processes(trace: Trace, tracks: Iterable[int]) -> dict[int, int]:
    """A number for the process, or the device, of each track: two ranks may share recorded ids."""
    numbers: dict[tuple[object, ...], int] = {}
    return {track: numbers.setdefault(_process(trace, track), len(numbers) + 1) for track in tracks}


def _process(trace: Trace, track: int) -> tuple[int, int, str]:
    table = trace["tracks"]
    device = int(table["device"][track])
    process = table.text("process")[track] or ""
    return int(table["rank"][track]), device, "" if device >= 0 else process


def _labels(trace: Trace, places: _Places) -> Iterator[ChromeEvent]:
    names = trace["tracks"].text("name")
    several = len(trace.metadata.ranks) > 1
    for track, (process, thread) in places.items():
        rank, device, recorded = _process(trace, track)
        title = f"device {device}" if device >= 0 else f"process {recorded}"
        title = f"rank {rank}, {title}" if several else title
        for what, value in (("process_name", title), ("thread_name", names[track] or "")):
            yield ChromeEvent(ph="M", name=what, pid=process, tid=thread, args={"name": value})
        order = {"sort_index": 2 * rank + (device >= 0)}
        yield ChromeEvent(ph="M", name="process_sort_index", pid=process, args=order)


def _slices(trace: Trace, events: Ids, places: _Places) -> Iterator[ChromeEvent]:
    part = trace.events.take(events)
    columns = (part["start_ns"].tolist(), part["duration_ns"].tolist(), part["track"].tolist())
    texts = part.text("name"), part.text("category")
    for event, given, name, category, start, duration, track in zip(
        events.tolist(), trace.arguments_of(events), *texts, *columns, strict=True
    ):
        process, thread = places[track]
        yield ChromeEvent(
            ph="X",
            name=name or "",
            cat=category or "",
            pid=process,
            tid=thread,
            ts=_us(start),
            dur=_us(duration),
            args={**given, EVENT: event},
        )


def _us(time_ns: int) -> float:
    return round(time_ns * _US, 3)


def _arrows(index: Index, events: Ids, places: _Places) -> Iterator[ChromeEvent]:
    for number, (kind, source, target) in enumerate(_links(index, events), 1):
        for phase, event in (("s", source), ("f", target)):
            process, thread = places[int(index.track[event])]
            yield ChromeEvent(
                ph=phase,
                id=number,
                name=kind,
                cat=kind,
                pid=process,
                tid=thread,
                ts=_us(int(index.start[event])),
                args={EVENT: event},
                bp="e" if phase == "f" else UNSET,
            )


def _links(index: Index, events: Ids) -> Iterator[tuple[str, int, int]]:
    """Launches, recorded arrows, and else forward to backward, with both ends among the events."""
    inside = mask_of(events, len(index.order))
    launched = events[index.launch[events] >= 0]
    launched = launched[inside[index.launch[launched]]]
    seen = set(zip(index.launch[launched].tolist(), launched.tolist(), strict=True))
    for source, target in sorted(seen):
        yield "ac2g", source, target
    flows = index.trace["flows"]
    source, target = flows["source_event"], flows["target_event"]
    for row in np.flatnonzero((source >= 0) & (target >= 0) & inside[source] & inside[target]).tolist():
        pair = int(source[row]), int(target[row])
        if pair not in seen:
            seen.add(pair)
            yield flows.text("kind")[row] or "", *pair
    if not flows.text("kind").mask("fwdbwd").any():
        yield from _forward_to_backward(index, events, inside)


def _forward_to_backward(index: Index, events: Ids, inside: Mask) -> Iterator[tuple[str, int, int]]:
    """From each forward event to its outermost backward event."""
    forward = index.events["forward_event"].astype(np.int64)
    linked = events[forward[events] >= 0]
    linked = linked[inside[forward[linked]]]
    outer = index.parent[linked]
    for target in linked[(outer < 0) | (forward[outer] != forward[linked])].tolist():
        yield "fwdbwd", int(forward[target]), target
