"""Reader of trace-event JSON from PyTorch (Kineto, since 2021) and any other tool.

Source: Trace Event Format (Chrome); Kineto's output_json.cpp for the meaning of its categories and
arguments (https://github.com/pytorch/kineto/blob/main/libkineto/src/output_json.cpp).
"""

import re
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from stepscope.base.arrays import Codes, Ids, Integers, Mask, Rows
from stepscope.errors import IngestError
from stepscope.read.byte_stream import Progress, chunks
from stepscope.read.chrome.categories import streams_by_label, track_columns
from stepscope.read.chrome.decode import EventReader
from stepscope.read.chrome.event_columns import RecordColumns, RecordedEvents
from stepscope.read.chrome.slices import ARROWS, ASYNC, STACKED, event_columns, slices_of
from stepscope.read.shared import MOST_RANKS, WarningLog, log_note
from stepscope.trace.arguments import parse
from stepscope.trace.builder import Arrows, Parts, build
from stepscope.trace.row_order import begins_run
from stepscope.trace.sets import distinct, mask_of
from stepscope.trace.table import Text
from stepscope.trace.trace import Metadata, Trace


def read_trace_events(file: BinaryIO, gzipped: bool, progress: Progress) -> Trace:
    """Read a JSON trace, as every `Reader` does."""
    return build(read_parts(file, gzipped, progress))  # nothing else as large is left by then


def read_parts(file: BinaryIO, gzipped: bool, progress: Progress) -> Parts:
    """The tables of a JSON trace, before they are built."""
    log, damage, columns = WarningLog(), WarningLog(), RecordColumns()
    # Both are closed at once, also after an error: left to the garbage collector, their threads
    # could be joined from a thread that is just starting, which would deadlock.
    with closing(chunks(file, gzipped, damage, progress)) as text:
        reader = EventReader(text, log)
        with closing(iter(reader)) as decoded:
            for chunk in decoded:
                columns.add(chunk)
    log.add(damage)  # where the data end; found earlier if reading is ahead of decoding
    return _parts(RecordedEvents(columns, log), reader.properties)


def _parts(recorded: RecordedEvents, properties: Mapping[str, Any]) -> Parts:
    recorded.columns.names.report(recorded.log)
    drop_repeated_events(recorded)
    metadata = metadata_of(properties, recorded.log)
    if any(category == STEP for _, category in recorded.phases):
        _read_as_paddle(recorded)
        metadata = replace(metadata, framework="paddle")
    elif not metadata.framework and any(name.startswith("PjitFunction(") for name in recorded.name.values):
        metadata = replace(metadata, framework="jax")
    _mark_steps(recorded)
    streams = streams_by_label(recorded)
    slices = slices_of(recorded)
    tracks = track_columns(recorded, metadata.ranks[0], streams)  # after the slices, which add some
    parts = Parts(
        events=event_columns(recorded, slices, streams),
        tracks=tracks,
        arrows=arrows_of(recorded),
        instants=instant_columns(recorded),
        counters=counter_columns(recorded),
        memory=memory_columns(recorded, metadata.ranks[0], {*tracks["device"]} - {-1}),
        metadata=metadata,
        arguments=recorded.columns.arguments,
        warnings=recorded.log.rows(),
    )
    instants = (parts.instants, parts.counters, parts.memory)
    if not len(slices.row) and not any(len(columns.get("time_ns", ())) for columns in instants):
        raise IngestError(
            "the file holds no readable trace event"
            + "".join(f"; {message}" for _, message, _ in recorded.log.rows())
        )
    return parts


_UNREAD = ("samples", "stackFrames", "systemTraceEvents", "controllerTraceDataKey")


def metadata_of(properties: Mapping[str, Any], log: WarningLog) -> Metadata:
    """Metadata from the top level of a trace file; `log` receives what is skipped."""
    parts = {key: properties[key] for key in _UNREAD if key in properties}
    unread = {key: len(part) if isinstance(part, list | dict | str) else 1 for key, part in parts.items()}
    skipped = ", ".join(f"{key} ({size})" for key, size in unread.items() if size)
    log("unread_section", f"skipped parts of the file: {skipped}", sum(unread.values()))
    for note in _notes(properties):
        log_note(log, note)
    info, devices = properties.get("distributedInfo"), properties.get("deviceProperties")
    info = info if isinstance(info, Mapping) else {}
    devices, version = devices if isinstance(devices, list) else [], properties.get("pytorch_version")
    return Metadata(
        framework="pytorch" if "schemaVersion" in properties else "",
        framework_version=version if isinstance(version, str) else "",
        devices=tuple(device for device in devices if isinstance(device, Mapping)),
        ranks=(_count(info.get("rank"), 0, MOST_RANKS - 1),),
        world_size=_count(info.get("world_size"), 1, MOST_RANKS),
        properties={key: value for key, value in properties.items() if key != "deviceProperties"},
    )


def _notes(properties: Mapping[str, Any]) -> list[str]:
    """What Kineto logged while it recorded, which it adds to the trace by severity."""
    logged = (properties.get(severity) for severity in ("ERROR", "WARNING", "INFO"))
    notes = [note for notes in logged for note in (notes if isinstance(notes, list) else [notes])]
    return [note for note in notes if isinstance(note, str)]


def _count(value: Any, default: int, most: int) -> int:
    return value if isinstance(value, int) and 0 <= value <= most else default


STEP = "ProfileStep"  # the category of a step in Paddle, which no other recorder writes
_STEP_NUMBER = re.compile(rb'"step_num"\s*:\s*"?(\d{1,9})')
_DURATION = re.compile(r"\[\d+(\.\d+)? [num]?s\]$")
_OF_CPP, _OF_PYTHON = "(C++)", "(Python)"


def _mark_steps(recorded: RecordedEvents) -> None:
    """Add the numbers to the names of steps, as XLA's profiler writes them among the arguments."""
    rows = recorded.rows(lambda phase, category: phase == "X" and not category)
    texts = recorded.columns.arguments.texts(recorded.columns.column("source")[rows])
    matches = zip(rows.tolist(), map(_STEP_NUMBER.search, texts), strict=True)
    marks = {row: match[1].decode() for row, match in matches if match}
    names = recorded.name
    marked = [f"{names[row] or ''}#step_num={number}" for row, number in marks.items()]
    codes = names.codes.astype(np.int32)
    codes[list(marks)] = np.arange(len(marked)) + len(names.values)
    recorded.name = Text(codes, [*names.values, *marked]) if marks else names


def _read_as_paddle(recorded: RecordedEvents) -> None:
    """Take durations from names and join the two tracks of a thread, as Paddle writes them."""
    recorded.name = recorded.name.map(lambda name: _DURATION.sub("", name))
    tracks = list(recorded.columns.tracks)
    number = {track: code for code, track in enumerate(tracks)}
    joined = [number.get(_python_side(track), code) for code, track in enumerate(tracks)]
    recorded.track = np.array(joined, recorded.track.dtype)[recorded.track]


def _python_side(track: tuple[Any, Any]) -> tuple[Any, Any]:
    process, thread = track
    if isinstance(thread, str) and thread.endswith(_OF_CPP):
        return process, thread.removesuffix(_OF_CPP) + _OF_PYTHON
    return track


_ELSEWHERE = {"X", "C", *STACKED, *ASYNC, *ARROWS}
_MEMORY_NAME = "[memory]"
_MOST_BYTES = 1 << 47  # that a 64-bit processor's program can address
_DEVICES = {0: "cpu", 1: "cuda", 6: "hip", 9: "xla", 12: "xpu", 13: "mps", 19: "mtia"}


def arrows_of(recorded: RecordedEvents) -> Arrows:
    """The ends of every flow arrow."""
    rows = recorded.of_phase(*ARROWS)
    heads = np.array([ARROWS.get(phase, False) for phase, _ in recorded.phases] or [False])
    return Arrows(
        kind=recorded.categories(rows),
        identity=recorded.columns.identity[rows].astype(np.int64),
        is_head=heads[recorded.phase[rows]],
        time_ns=recorded.time_ns[rows],
        track=recorded.track[rows].astype(np.int32),
    )


def instant_columns(recorded: RecordedEvents) -> dict[str, Any]:
    """Columns of the instants: every phase that no other table has, so that none is lost."""
    rows = recorded.rows(lambda phase, category: phase not in _ELSEWHERE)
    rows = np.setdiff1d(rows, _memory_rows(recorded), assume_unique=True)
    return {
        "time_ns": recorded.time_ns[rows],
        "track": recorded.track[rows],
        "name": recorded.name.take(rows),
        "category": recorded.categories(rows),
        "phase": recorded.letters(rows),
        "source": recorded.columns.column("source")[rows],
    }


def memory_columns(recorded: RecordedEvents, rank: int, devices: set[int]) -> dict[str, Any]:
    """Columns of the memory table, empty if no allocation was recorded."""
    rows = _memory_rows(recorded)
    if not len(rows):
        return {}
    columns = recorded.columns
    kinds, indices = columns.column("device_type")[rows], columns.column("device_id")[rows]
    # PyTorch counts what the process may use, ROCm's recorder all of the machine: one device is the same.
    if len(devices) == 1 == len(distinct(indices[indices >= 0])):
        indices = np.where(indices >= 0, min(devices), indices)
    return {
        "time_ns": recorded.time_ns[rows],
        "track": recorded.track[rows],
        "rank": np.full(len(rows), rank),
        "device": list(map(_device, kinds.tolist(), indices.tolist())),
        "address": columns.column("address")[rows],
        "bytes": columns.column("allocation")[rows],
        **{
            f"{name}_bytes": np.where(_are_sizes(columns.column(name)[rows]), columns.column(name)[rows], -1)
            for name in ("allocated", "reserved")
        },
    }


def _memory_rows(recorded: RecordedEvents) -> Rows:
    rows = recorded.of_phase("i", "I")
    named = recorded.name.take(rows).mask(_MEMORY_NAME)
    sizes = recorded.columns.column("allocation")[rows]
    return np.asarray(rows[named & (sizes != 0) & _are_sizes(sizes)], np.intp)


def _are_sizes(bytes_: Integers) -> Mask:
    """Which are sizes of memory: no device has more, and sums of more overflow."""
    return (bytes_ > -_MOST_BYTES) & (bytes_ < _MOST_BYTES)


def _device(kind: int, index: int) -> str:
    name = _DEVICES.get(kind, f"device type {kind}")
    return name if index < 0 else f"{name}:{index}"


def counter_columns(recorded: RecordedEvents) -> dict[str, Any]:
    """Columns of the counters: a row for each number of a counter event."""
    rows = recorded.of_phase("C")
    texts = recorded.columns.arguments.texts(recorded.columns.column("source")[rows])
    numbers = list(map(_numbers, texts))
    empty = sum(not each for each in numbers)
    recorded.log("counter_without_value", "skipped a counter event without a number", empty)
    values = [(row, *pair) for row, pairs in zip(rows.tolist(), numbers, strict=True) for pair in pairs]
    at: Rows = np.array([row for row, _, _ in values], np.intp)
    return {
        "time_ns": recorded.time_ns[at],
        "track": recorded.track[at],
        "name": recorded.name.take(at),
        "series": [series for _, series, _ in values],
        "value": [value for _, _, value in values],
    }


def _numbers(text: bytes) -> list[tuple[str, float]]:
    return [
        (series, number) for series, value in parse(text).items() if (number := _number(value)) is not None
    ]


def _number(value: Any) -> float | None:
    try:
        return float(value) if isinstance(value, int | float) else None
    except OverflowError:
        return None


# -- events that a file holds more than once: a trace twice in one file, a recorder that writes twice
# Times, shares and counts would all be too large. Equal means equal in all that is recorded: phase,
# category, name, track, time, duration, id and arguments. Traces hold some such events by nature, so
# copies are dropped only where they are a large part of a file or of one of its categories.

_SAMPLED = 1 << 8  # events, spread over the file
_FEW = 4  # of the sampled events: with fewer twins among them nothing is searched
_LARGE = 0.25  # of the events of a file: they are copies
_NEARLY_ALL, _LEAST = 0.8, 16  # of the events of a category
_NOTED = 0.05  # of the events of a file: fewer are no warning
_TABLE = 65_521  # ns: a prime, as times may all be multiples of 1,000 ns; fits into a core's cache
_NO_DURATION = -1.0  # us: two events without a duration are equal in that, as NaN is not


class _Groups(NamedTuple):
    """Equal events together, and in file order within a group; columns of shape (n,)."""

    rows: Rows  # of events
    group: Ids  # number of the group of each, ascending
    size: Ids  # of this group
    place: Ids  # in this group, from 0


def drop_repeated_events(recorded: RecordedEvents) -> None:
    """Keep one of each event that is in the file several times, if many are, and warn.

    An event that a copy of the trace holds twice stays twice. Of events that begin and end apart, equal ones
    may be nested, as of a function that calls itself, so that only nearly all of them count as copies.
    """
    if _sampled_twins(recorded) < _FEW:
        return
    groups = _equal_events(recorded, np.flatnonzero(recorded.usable))
    timed = _durations(recorded, groups.rows) != 0
    repeated = groups.size > 1
    share = float((repeated & timed).sum()) / max(int(timed.sum()), 1)
    apart = _of_phases(recorded, {*STACKED, *ASYNC})
    kind = np.where(apart, len(apart), np.arange(len(apart)))[recorded.phase[groups.rows]]
    large = (share >= _LARGE) & (kind < len(apart))
    chosen = repeated & (large | _nearly_all(kind, repeated, timed))
    if not chosen.any():
        message = "events are in the file more than once, with equal times and arguments; all count"
        whole = kind < len(apart)
        share = float((repeated & timed & whole).sum()) / max(int(timed.sum()), 1)
        noted = int((whole & (groups.place > 0)).sum()) if share >= _NOTED else 0
        recorded.log("repeated_events", message, noted)
        return
    copies = int(np.bincount(groups.size[chosen]).argmax())
    extra = groups.rows[chosen & (groups.place >= -(-groups.size // copies))]
    recorded.usable[extra] = False
    message = "events are in the file more than once, with equal times and arguments; one of each "
    recorded.log("repeated_events", message + "counts", len(extra))


def _sampled_twins(recorded: RecordedEvents) -> int:
    """How many of some events, spread over the file, have an equal one as far as columns say.

    Arrows are left aside: many may end in one event, and only their ids differ.
    """
    time = recorded.time_ns
    sample = np.unique(np.linspace(0, len(time) - 1, min(_SAMPLED, len(time))).astype(np.intp))
    arrow = _of_phases(recorded, ARROWS)
    sample = sample[recorded.usable[sample] & ~arrow[recorded.phase[sample]]]
    sample = sample[_durations(recorded, sample) != 0]
    near = mask_of(time[sample] % _TABLE, _TABLE)
    rows = np.flatnonzero(near[time % _TABLE])  # and a few more, whose times differ by its size
    groups = _groups(recorded, rows[recorded.usable[rows]])
    return int(np.isin(groups.rows[groups.size > 1], sample).sum())


def _of_phases(recorded: RecordedEvents, letters: Collection[str]) -> Mask:
    return np.array([phase in letters for phase, _ in recorded.phases], np.bool_)


def _durations(recorded: RecordedEvents, rows: Rows) -> np.typing.NDArray[np.float64]:
    """Of each event, µs; -1 if it has none."""
    duration = recorded.columns.column("duration_us")[rows]
    return np.where(np.isnan(duration), _NO_DURATION, duration)


def _equal_events(recorded: RecordedEvents, rows: Rows) -> _Groups:
    """Events of which all that is recorded is equal."""
    groups = _groups(recorded, rows, recorded.columns.identity)
    candidates = np.sort(groups.rows[groups.size > 1])
    codes = np.zeros(len(recorded.time_ns), np.int64)
    codes[candidates] = _argument_codes(recorded, candidates)
    return _groups(recorded, rows, recorded.columns.identity, codes)


def _argument_codes(recorded: RecordedEvents, rows: Rows) -> Ids:
    """A number for the arguments of each event, ascending rows, equal for equal ones."""
    sources = recorded.columns.column("source")[rows]
    codes = np.full(len(rows), hash(b"{}"), np.int64)
    for block, part in recorded.columns.arguments.parts(sources):
        codes[part] = [hash(text) for text in block.find_all(sources[part])]
    return codes


def _groups(recorded: RecordedEvents, rows: Rows, *further: Ids) -> _Groups:
    """Events that are equal in the columns that tell most, and in further ones of all events."""
    columns = [recorded.phase, recorded.track, recorded.name.codes, *further]
    keys = [*(column[rows] for column in columns), _durations(recorded, rows), recorded.time_ns[rows]]
    order = np.lexsort(keys)
    begins = np.zeros(len(rows), np.bool_)
    for key in keys:
        begins |= begins_run(key[order])
    group = np.cumsum(begins) - 1
    starts = np.flatnonzero(begins)
    size = np.diff(np.append(starts, len(rows)))
    return _Groups(rows[order], group, size[group], np.arange(len(rows)) - starts[group])


def _nearly_all(kind: Codes, repeated: Mask, timed: Mask) -> Mask:
    """Events of kinds of which nearly all are repeated."""
    kinds = int(kind.max(initial=0)) + 1
    count = np.bincount(kind[timed], minlength=kinds)
    twins = np.bincount(kind[timed & repeated], minlength=kinds)
    return np.logical_and(twins >= _LEAST, twins >= _NEARLY_ALL * count)[kind]
