"""The communication calls of one rank: when it arrives at each, and when it waits for its end.

A rank's *progress* is its time without waiting for other ranks. Calls are placed on it, so that a
job can be replayed from the sketches: a rank arrives when its own work allows, and goes on when
the call that it waits for has ended.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from stepscope.base.arrays import Ids, Mask, Rows, Times
from stepscope.facts.annotate.device.collectives import collective_key, elements, is_communication_call
from stepscope.facts.annotate.device.idle import exposed_communication
from stepscope.facts.annotate.links.launches import launch_of, on_host
from stepscope.models.ranks.passes import Passes, passes_of, unpacked
from stepscope.trace.intervals import Intervals
from stepscope.trace.nesting import inherit, outermost
from stepscope.trace.schema import COMPUTING, STAGES
from stepscope.trace.trace import Trace

# What bounds a sketch, which is to have 100 kB at most.
_MOST_CALLS = 1200  # calls: 10 columns of each, packed
_MOST_KINDS = 100  # distinct kinds; further ones lose their process group
_MOST_PLACES = 100  # distinct places; calls at further ones are at the first
_LETTERS = 60  # of a name of a kind, a group or a kernel
PATH_LETTERS = 100  # of a module's path
_ROUNDING_NS = 100  # of starts and durations: work that begins so much before a call's end follows
_QUEUED_NS = 10_000  # a call that begins so soon after another of its stream had queued
_WAKING_NS = 100_000  # the thread that waited may go on before the call's end is noted
_NUMBER = re.compile(r"\d{1,9}")  # of ranks: a longer one is none
_PEER = {"send": "Dst Rank", "recv": "Src Rank"}
PAIRS = tuple(_PEER)
_NAMING = ("Collective name", "Process Group Name")


class CallKind(msgspec.Struct, frozen=True, array_like=True):
    """What distinguishes calls: the kind, its process group, and for `send` and `recv` the peer."""

    kind: str  # such as `allreduce`
    group: str = ""  # name of the process group, as recorded
    ranks: str = ""  # its ranks, such as `0-7`, `0-56/8` or `0,3,4`; as recorded if not a list
    size: int = -1  # number of its ranks, -1 if unknown
    peer: int = -1  # the other rank of a `send` or a `recv`, else -1


class Calls(msgspec.Struct, frozen=True):
    """Communication, one row per call in order of its start."""

    kinds: list[CallKind] = []
    places: list[str] = []  # what ranks do: `stage: module: kernel`
    begin_ns: int = 0  # when the first step begins, on the clock of this machine
    own_ns: list[int] = []  # for each step the rank's progress during it
    packed: bytes = b""
    passes: bytes = b""  # of a rank that sends or receives what it computes, packed; see `passes`

    def columns(self) -> CallColumns:
        """The columns, unpacked."""
        return CallColumns(*unpacked(self.packed, "<i8", len(CallColumns._fields)))

    def of_every_second_step(self) -> Calls:
        """With the calls of half of the steps that have any, or with none at last."""
        columns = self.columns()
        steps = np.unique(columns.step)
        rows = np.flatnonzero(np.isin(columns.step, steps[::2] if len(steps) > 1 else ()))
        kept = columns.take(rows)
        kinds, kind = np.unique(kept.kind, return_inverse=True)
        places, place = np.unique(kept.place, return_inverse=True)
        return msgspec.structs.replace(
            self,
            kinds=[self.kinds[row] for row in kinds.tolist()],
            places=[self.places[row] for row in places.tolist()],
            packed=kept._replace(kind=kind, place=place).pack() if len(rows) else b"",
            passes=Passes.unpack(self.passes).of_steps(kept.step).pack(),
        )


class CallColumns(NamedTuple):
    """Columns of calls, each int64, shape (calls,); times in ns."""

    kind: Ids  # index into `kinds`
    step: Ids  # index into the sketch's steps
    start_ns: Times
    duration_ns: Times
    arrival_ns: Times
    waited_ns: Times  # progress since its step began at which the rank waits for the call's end
    sent: Ids  # bytes, -1 if unknown
    received: Ids  # bytes, -1 if unknown
    place: Ids  # index into `places`: the work before the call
    stream: Ids  # calls of the same stream come one after the other

    def take(self, rows: Ids | Rows) -> CallColumns:
        return CallColumns(*(column[rows] for column in self))

    def pack(self) -> bytes:
        """For `Calls.packed`."""
        return zlib.compress(np.stack(self).astype("<i8").tobytes())


class CallTimeline(NamedTuple):
    """The communication of a rank in its steps."""

    rows: Ids
    step: Ids  # index of the step of each
    kept: Ids  # the calls that a sketch keeps: of every step, or of every second, fourth, … step
    named: Sequence[tuple[CallKind, Mapping[str, Any]]]
    waits: Intervals
    resumed: Times  # when the rank goes on with what needs the call
    ready: Times  # when the rank could have begun the call, had its stream been free


def computing_on_device(trace: Trace) -> Ids:
    """The events that are work of a device that computes or copies."""
    return np.flatnonzero(trace.events.text("category").mask(*COMPUTING) & ~on_host(trace))


def waits_of(trace: Trace) -> Intervals:
    """When the training thread only waits for communication; nothing if a device communicates."""
    if (trace.events.text("category").mask("communication") & ~on_host(trace)).any():
        return Intervals([], [])
    return exposed_communication(trace, trace.metadata.ranks[0], trace["steps"])


def calls_of(
    trace: Trace, begins: Times, ends: Times, clock_ns: int, work: Ids, timeline: CallTimeline
) -> Calls:
    """The communication of a rank within its steps (`begins`, `ends`: ns, shape (steps,)). Of more
    than 1,200 calls, those of every second, fourth, … step are kept."""

    def progress(times: Times) -> Times:
        return times - timeline.waits.before(np.asarray(times, np.int64))

    first, last = progress(begins), progress(ends)
    calls = timeline.kept
    events, rows = trace.events, timeline.rows[calls]
    step, start = timeline.step[calls], events["start_ns"][rows]
    own = np.maximum(last - first, 0)
    arrival = np.clip(progress(timeline.ready[calls]) - first[step], 0, own[step])
    waited = np.clip(progress(timeline.resumed[calls]) - first[step], arrival, own[step])
    kinds, kind, sent, received = _kinds(trace, rows, timeline.named)
    places, place = _places(trace, rows, work)
    stream, duration = events["track"][rows].astype(np.int64), events["duration_ns"][rows]
    columns = CallColumns(
        kind, step, start - begins[0], duration, arrival, waited, sent, received, place, stream
    )
    passes = b""
    if any(one.kind.endswith(PAIRS) for one in kinds):
        marks = np.concatenate([timeline.ready[calls], timeline.resumed[calls]])
        passes = passes_of(trace, begins, ends, work, marks, timeline.waits).of_steps(step).pack()
    return Calls(kinds, places, clock_ns + int(begins[0]), own.tolist(), columns.pack(), passes)


def _thinned(step: Ids, steps: int) -> Ids:
    """The calls of every step, or of every second, fourth, … step if there are too many."""
    every = 1
    while every < steps and (step % every == 0).sum() > _MOST_CALLS:
        every *= 2
    return np.flatnonzero(step % every == 0)[:_MOST_CALLS].astype(np.int64)


def calls_timeline(trace: Trace, begins: Times, ends: Times, work: Ids, waits: Intervals) -> CallTimeline:
    """When a rank makes each call and waits for it; of calls that are kept, when it goes on."""
    events = trace.events
    rows = outermost_calls(trace)
    start = events["start_ns"][rows]
    step = np.searchsorted(begins, start, side="right") - 1
    inside = (step >= 0) & (start < np.append(ends, 0)[np.maximum(step, 0)])
    rows, step = rows[inside], step[inside].astype(np.int64)
    kept = _thinned(step, len(begins))
    named = named_calls(trace, rows[kept])
    ways = np.full(len(rows), "", "<U8")
    ways[kept] = [kind.kind for kind, _ in named]
    if not len(rows) or on_host(trace)[rows[0]]:
        moments = _thread_moments(trace, rows, ends[step], waits)
    else:
        moments = _device_moments(trace, rows, ways, work, ends[step])
    return CallTimeline(rows, step, kept, named, *moments)


def _thread_moments(
    trace: Trace, rows: Ids, step_ends: Times, idle: Intervals
) -> tuple[Intervals, Times, Times]:
    """Without a device: a call is waited for if nothing computes when it ends."""
    begin, end = trace.events.spans(rows)
    place = np.searchsorted(idle.ends, end - _WAKING_NS, side="left")
    since = np.append(idle.starts, np.iinfo(np.int64).max)[place]
    return idle, np.maximum(np.where(since < end, end, step_ends), end), begin


def outermost_calls(trace: Trace) -> Ids:
    """Communication by start, none inside other: of devices, or if none has any of threads."""
    events = trace.events
    mine = events.text("category").mask("communication")
    on_device = mine & ~on_host(trace)
    mine = on_device if on_device.any() else mine
    return np.flatnonzero(outermost(events["parent"], mine)).astype(np.int64)


def _device_moments(
    trace: Trace, rows: Ids, ways: np.ndarray, work: Ids, step_ends: Times
) -> tuple[Intervals, Times, Times]:
    """When each call is waited for: at the end of the step, unless something needs it before."""
    events = trace.events
    start, end = events.spans(rows)
    begin, until = events.spans(work)
    reach = np.maximum.accumulate(until)
    before = np.searchsorted(begin, end - _ROUNDING_NS, side="left")  # began before the end
    busy_until = np.where(before > 0, np.append(reach, 0)[before - 1], start)
    following = np.minimum(before, max(len(work) - 1, 0))
    has_next = before < len(work)
    begin_next = np.where(has_next, np.append(begin, 0)[following], step_ends)
    exposed = busy_until < end
    since = np.maximum(_waiting_since(trace, work, following, has_next, end), np.maximum(busy_until, start))
    needed = exposed & (since < end)
    waits = Intervals(since[needed], end[needed])
    resumed = np.where(needed, end, np.where(exposed | (ways == "recv"), begin_next, step_ends))
    sends = ways == "send"
    resumed = np.where(sends & _waits_for_another(end, begin_next, before, sends), step_ends, resumed)
    return waits, np.maximum(resumed, end), _ready(trace, rows, work, start, end)


def _waits_for_another(end: Times, begin_next: Times, before: Ids, sends: Mask) -> Mask:
    """Whether a rank that idles when a call ends waits for something else: it idles on, or another
    call that is no `send` ends as late. `before` is how much work began before it ended: calls with
    the same number end in one gap."""
    latest = np.full(int(before.max(initial=0)) + 1, np.iinfo(np.int64).min)
    np.maximum.at(latest, before[~sends], end[~sends])
    return np.asarray((begin_next - end > _QUEUED_NS) | (latest[before] > end - _QUEUED_NS))


def _ready(trace: Trace, rows: Ids, work: Ids, start: Times, end: Times) -> Times:
    """When each call could begin: when it did, or if it queued after another, when it had to wait
    for nothing else. A collective waits for its launch and for the work launched before it.
    """
    events, caller = trace.events, launch_of(trace)
    order = np.lexsort((start, events["track"][rows]))
    follows = np.zeros(len(rows), np.bool_)
    follows[order[1:]] = (np.diff(events["track"][rows][order]) == 0) & (
        start[order[1:]] - end[order[:-1]] < _QUEUED_NS
    )
    launched = np.where(caller[rows] >= 0, events["start_ns"][caller[rows]], start)
    linked = work[caller[work] >= 0]
    linked = linked[np.argsort(events["start_ns"][caller[linked]], kind="stable")]
    ends = np.maximum.accumulate(events.spans(linked)[1])
    before = np.searchsorted(events["start_ns"][caller[linked]], launched, side="left")
    needed = np.where(before > 0, np.append(ends, 0)[before - 1], launched)
    return np.asarray(np.where(follows, np.minimum(np.maximum(launched, needed), start), start))


def _waiting_since(trace: Trace, work: Ids, following: Ids, has_next: Mask, end: Times) -> Times:
    """When the CPU has launched the next work, or waits for the call: later the rank only waits."""
    events = trace.events
    caller = launch_of(trace)[work]
    # Where no launch is recorded, nothing but a call can be what idle time before other work waits for.
    since = np.where(has_next & (caller >= 0).any(), np.iinfo(np.int64).max, 0)
    if len(work):
        caller = caller[following]
        since = np.where(has_next & (caller >= 0), events["start_ns"][caller], since)
    sync = np.flatnonzero(events.text("name").where(lambda name: "Synchronize" in name))
    begins, ends = events.spans(sync)
    place = np.searchsorted(begins, end, side="right") - 1
    begin, until = (np.append(times, 0)[place] for times in (begins, ends))
    return np.asarray(np.where((place >= 0) & (until >= end), np.minimum(since, begin), since))


def named_calls(trace: Trace, rows: Ids) -> list[tuple[CallKind, Mapping[str, Any]]]:
    """The kind and the arguments of each call: its own, or those of the call that launched it."""
    events = trace.events
    name = events.text("name")
    library = name.where(is_communication_call)
    library &= events.text("category").mask("cpu_op", "annotation", "communication")
    around = inherit(events["parent"], np.where(library, events["id"], -1))
    caller = launch_of(trace)[rows]
    calls = around[np.where(caller >= 0, caller, rows)]
    named: list[tuple[CallKind, Mapping[str, Any]]] = []
    for row, call in zip(rows.tolist(), calls.tolist(), strict=True):
        arguments: Mapping[str, Any] = trace.event_arguments(row)
        if call >= 0 and not any(key in arguments for key in _NAMING):
            arguments = _arguments_around(trace, call) or arguments
        named.append((_call_kind(str(name[call if call >= 0 else row]), arguments), arguments))
    return named


def _arguments_around(trace: Trace, call: int) -> Mapping[str, Any]:
    """The arguments of the innermost event from `call` outward that names its process group."""
    parent = trace.events["parent"]
    while call >= 0:
        arguments = trace.event_arguments(call)
        if any(key in arguments for key in _NAMING):
            return arguments
        call = int(parent[call])
    return {}


def _call_kind(name: str, arguments: Mapping[str, Any]) -> CallKind:
    kind, group, ranks, size = collective_key(name, arguments)
    peer = arguments.get(_PEER.get(kind, ""))
    return CallKind(
        kind[:_LETTERS],
        group[:_LETTERS],
        ranks_in_short(ranks)[:_LETTERS],
        int(size) if _NUMBER.fullmatch(size) else -1,
        peer if isinstance(peer, int) and 0 <= peer < 2**31 else -1,
    )


def _kinds(
    trace: Trace, rows: Ids, named: Sequence[tuple[CallKind, Mapping[str, Any]]]
) -> tuple[list[CallKind], Ids, Ids, Ids]:
    """The distinct kinds, and for each call its kind and the bytes sent and received."""
    kinds: dict[CallKind, int] = {}
    columns = np.zeros((3, len(rows)), np.int64)
    sizes = trace.events["bytes"][rows].tolist()
    for place, ((key, arguments), size) in enumerate(zip(named, sizes, strict=True)):
        if key not in kinds and len(kinds) >= _MOST_KINDS:
            key = CallKind(key.kind)
        shares = (_share(arguments, way, size) for way in ("In", "Out"))
        columns[:, place] = kinds.setdefault(key, len(kinds)), *shares
    return list(kinds), columns[0], columns[1], columns[2]


def _share(arguments: Mapping[str, Any], way: str, most: int) -> int:
    """The bytes sent or received: those of the larger side, in proportion to the elements."""
    mine, larger = elements(arguments, way), max(elements(arguments, side) for side in ("In", "Out"))
    return most if most < 0 or mine < 0 or not larger else most * mine // larger


def ranks_in_short(text: str) -> str:
    """A list of ranks in short; other text as it is.

    Example:
        >>> [ranks_in_short(text) for text in ("[0, 1, 2, 3]", "[0, 8, 16]", "[1, 2, 5]", "[7]")]
        ['0-3', '0-16/8', '1,2,5', '7']
    """
    if not re.fullmatch(r"\[?\s*\d{1,9}(\s*,\s*\d{1,9})*\s*\]?", text):
        return text
    ranks = [int(number) for number in re.findall(r"\d+", text)]
    gaps = set(np.diff(ranks).tolist())
    if len(ranks) < 3 or len(gaps) > 1 or min(gaps) < 1:
        return ",".join(map(str, ranks))
    (gap,) = gaps
    return f"{ranks[0]}-{ranks[-1]}" + (f"/{gap}" if gap > 1 else "")


def _places(trace: Trace, rows: Ids, work: Ids) -> tuple[list[str], Ids]:
    """The computation that ended last before each call began: its stage, module and kernel.

    Without a device, the stage that a send is part of: of a pipeline, it tells to whom.
    """
    events = trace.events
    if not len(work):
        sends = events.text("name").take(rows).where(lambda name: name.endswith("send"))
        return ["", *STAGES], np.where(sends, events["stage"][rows] + 1, 0).astype(np.int64)
    _, end = events.spans(work)
    order = np.argsort(end, kind="stable")
    last = np.searchsorted(end[order], events["start_ns"][rows], side="right") - 1
    numbers: dict[str, int] = {}
    place = np.zeros(len(rows), np.int64)
    for call, row in enumerate(np.append(work[order], -1)[last].tolist()):
        text = _place(trace, row) if row >= 0 else ""
        is_kept = text in numbers or len(numbers) < _MOST_PLACES
        place[call] = numbers.setdefault(text, len(numbers)) if is_kept else place[0]
    return list(numbers), place


def _place(trace: Trace, row: int) -> str:
    stage, module = int(trace.events["stage"][row]), int(trace.events["module"][row])
    parts = [
        STAGES[stage] if stage >= 0 else "",
        str(trace["modules"].text("path")[module] or "")[:PATH_LETTERS] if module >= 0 else "",
        str(trace.events.text("name")[row])[:_LETTERS],
    ]
    return ": ".join(filter(None, parts))
