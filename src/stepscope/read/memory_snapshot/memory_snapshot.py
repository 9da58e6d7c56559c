"""Reader of the snapshots that `torch.cuda.memory._dump_snapshot` writes."""

from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

from stepscope.base.arrays import Array, Rows, Times
from stepscope.errors import IngestError
from stepscope.read.byte_stream import Progress, on_disk
from stepscope.read.memory_snapshot.history import (
    CompiledHistory,
    History,
    Stacks,
    segment_columns,
    small,
    text_of,
)
from stepscope.read.memory_snapshot.safe_pickle import load
from stepscope.read.shared import WarningLog
from stepscope.read.unsupported import PICKLE
from stepscope.trace.memory_schema import ALLOCATIONS, BLOCKS, MEMORY_EVENTS, SEGMENTS, STACKS
from stepscope.trace.sets import distinct
from stepscope.trace.spill import copy_of
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Metadata, Trace, clock_of, with_times

_KEYS = ("segments", "device_traces")
_HEAD_KEYS = (*_KEYS, "allocator_settings", "segment_type")  # the last alone in a list of segments
_MICROSECOND = 1000  # ns
# A list that a file repeats by reference takes two bytes of it; rows that are written out take 40.
_ROW_BYTES, _FEW_ROWS = 8, 1 << 12
_MOST_DEVICES = 256  # of one process: NVL72 has 72; each takes time of its own
_MOST_SETTINGS = 100  # of the allocator; PyTorch 2.9 has 14
_TABLES = ("segments", "blocks", "allocations", "memory_events", "stacks")


def is_snapshot(head: bytes) -> bool:
    """Whether a file's first bytes are a pickle that names a snapshot's parts."""
    return head.startswith(PICKLE) and any(key.encode() in head for key in _HEAD_KEYS)


def read_snapshot(file: BinaryIO, gzipped: bool, progress: Progress) -> Trace:
    """A trace with the tables of a memory snapshot and no events, as every `Reader` gives one."""
    log = WarningLog()
    with on_disk(file, gzipped, log, progress) as path, path.open("rb") as copy:
        trace = _snapshot(copy_of(copy))
    return trace.with_warnings(log.rows())


def with_snapshot(trace: Trace, data: bytes) -> Trace:
    """A capture's trace with the tables of the snapshot that lies in it, on the trace's clock."""
    snapshot = _snapshot(data)
    shift = snapshot.metadata.origin_ns - clock_of(trace.metadata)

    def moved(times: Times) -> Times:
        return np.maximum(times + shift, 0)  # the history is longer; less than 0 would be null

    for name in _TABLES:
        trace = trace.with_table(with_times(snapshot[name], moved))
    return trace.with_metadata(properties={**trace.metadata.properties, **snapshot.metadata.properties})


def _snapshot(data: Any) -> Trace:
    stacks = Stacks()
    history = History(stacks)
    snapshot = load(data, history.take, CompiledHistory(data, history, stacks))
    if isinstance(snapshot, list):  # as PyTorch before 2.0 wrote it
        snapshot = {"segments": snapshot}
    if not isinstance(snapshot, dict) or not any(key in snapshot for key in _KEYS):
        raise IngestError("expected a memory snapshot with segments, found another pickle")
    most_rows = _FEW_ROWS + len(data) // _ROW_BYTES
    segments, blocks = segment_columns(snapshot.get("segments") or (), stacks, most_rows)
    events = history.columns(snapshot.get("device_traces"), most_rows)
    devices = {*segments["device"], *distinct(events["device"]).tolist()}
    if len(devices) > _MOST_DEVICES or max(devices, default=0) >> 31:
        raise IngestError(f"the snapshot names {len(devices):,} devices up to {max(devices)}; it is damaged")
    return _trace(snapshot, stacks, history, events, segments, blocks)


def _trace(
    snapshot: Mapping[str, Any],
    stacks: Stacks,
    history: History,
    events: Mapping[str, Any],
    segments: Mapping[str, Any],
    blocks: Mapping[str, Any],
) -> Trace:
    columns = dict(events)
    times, origin = _times(columns.pop("time_us"))
    actions = Text(columns.pop("action").astype(np.int32), list(history.actions) or [""])
    recorded = Table(MEMORY_EVENTS, {**columns, "time_ns": times, "action": actions})
    held, cells = Table(SEGMENTS, segments), Table(BLOCKS, blocks)
    settings = _settings(snapshot.get("allocator_settings"))
    metadata = Metadata(framework="pytorch", origin_ns=origin, properties={"allocator_settings": settings})
    allocations = Table(ALLOCATIONS, find_allocations(recorded, held, cells))
    tables = (recorded, held, cells, Table(STACKS, stacks.columns()), allocations)
    return Trace({table.schema.name: table for table in tables}, metadata)


def _settings(value: Any, depth: int = 2) -> dict[str, Any]:
    """Settings with plain values, and dicts of them: a file may nest, and repeat, anything."""
    settings: dict[str, Any] = {}
    for key, setting in list(value.items())[:_MOST_SETTINGS] if isinstance(value, dict) else ():
        if isinstance(setting, dict) and depth > 1:
            settings[text_of(key)] = _settings(setting, depth - 1)
        elif isinstance(setting, str):
            settings[text_of(key)] = text_of(setting)
        elif isinstance(setting, bool | float) or (isinstance(setting, int) and small(setting) == setting):
            settings[text_of(key)] = setting
    return settings


def _times(time_us: Array) -> tuple[Array, int]:
    """Nanoseconds since the first event, and when that was; in order, where none are known."""
    if not len(time_us) or (time_us < 0).any():
        return np.arange(len(time_us), dtype=np.int64), 0
    first = int(time_us.min())
    return (time_us - first) * _MICROSECOND, first * _MICROSECOND


_NAMES = ("device", "address", "bytes", "stream", "stack", "start_ns", "request_ns", "end_ns")


def find_allocations(events: Table, segments: Table, blocks: Table) -> dict[str, Any]:
    """Columns of the table `allocations` from those of a snapshot.

    An allocation whose beginning or end lies outside the history has -1 there.
    """
    if not events.text("action").mask("free_completed", "free").any():  # `skip_actions` left them out
        known = {"alloc": "alloc", "free_requested": "free_completed"}  # no other counts here
        events = events.with_columns(action=events.text("action").map(known.get))
    order = np.lexsort((np.arange(len(events)), events["address"], events["device"]))
    recorded, repeats = _recorded(events, order)
    parts = [recorded, _freed_only(events, order, repeats), _alive_before(events, order, segments, blocks)]
    unknown = [np.full(len(part["device"]), -1) for part in parts]
    return {
        name: np.concatenate([part.get(name, absent) for part, absent in zip(parts, unknown, strict=True)])
        for name in _NAMES
    }


def _recorded(events: Table, order: Rows) -> tuple[dict[str, Array], bool]:
    """Allocations whose beginning is in the history, and whether releases repeat their stacks.

    With `context="alloc"` the allocator writes the stack of the allocation with its release.
    """
    starts = np.flatnonzero(events.text("action").mask("alloc")[order])
    limit = np.append(starts[1:], len(order))
    rows = order[starts]
    requested = _first(events, order, starts, limit, "free_requested")
    completed = _first(events, order, starts, limit, "free_completed", "free")
    columns = {
        **{name: events[name][rows] for name in ("device", "address", "bytes", "stream", "stack")},
        "start_ns": events["time_ns"][rows],
        "request_ns": _time_at(events, requested),
        "end_ns": _time_at(events, completed),
    }
    ended = completed >= 0
    stacks = events["stack"][rows[ended]]
    repeats = bool((stacks >= 0).any() and (stacks == events["stack"][completed[ended]]).all())
    return columns, repeats


def _freed_only(events: Table, order: Rows, has_stack: bool) -> dict[str, Array]:
    """Allocations of which the history holds only the end: the first event of their address."""
    action = events.text("action")
    ends = np.flatnonzero(action.mask("free_completed", "free")[order])
    last = np.flatnonzero(action.mask("alloc", "free_completed", "free")[order])
    before = np.searchsorted(last, ends) - 1
    earlier = order[last[np.maximum(before, 0)]]
    rows = order[ends]
    first = (before < 0) | ~_same_place(events, rows, earlier)
    rows = rows[first]
    names = ("device", "address", "bytes", "stream", *(["stack"] if has_stack else []))
    return {**{name: events[name][rows] for name in names}, "end_ns": events["time_ns"][rows]}


def _alive_before(events: Table, order: Rows, segments: Table, blocks: Table) -> dict[str, Array]:
    """Blocks that are in use at the end and whose beginning is not in the history."""
    used = np.flatnonzero(blocks.text("state").where(lambda state: state.startswith("active")))
    device = segments["device"][blocks["segment"][used]]
    alive = _alive_at_end(events, order)
    known = set(zip(*(events[name][alive].tolist() for name in ("device", "address")), strict=True))
    places = zip(device.tolist(), blocks["address"][used].tolist(), strict=True)
    old = np.array([place not in known for place in places], np.bool_)
    used = used[old]
    columns = {name: blocks[name][used] for name in ("address", "bytes", "stack")}
    return {**columns, "device": device[old], "stream": segments["stream"][blocks["segment"][used]]}


def _alive_at_end(events: Table, order: Rows) -> Rows:
    """The allocations of the history that are the last event of their address."""
    action = events.text("action")
    order = order[action.mask("alloc", "free_completed", "free")[order]]
    last = np.append(~_same_place(events, order[:-1], order[1:]), True)[: len(order)]
    return order[last & action.mask("alloc")[order]]


def _first(events: Table, order: Rows, starts: Rows, limit: Rows, *actions: str) -> Rows:
    """The first event of some actions at the same address before the next allocation, or -1."""
    found = np.flatnonzero(events.text("action").mask(*actions)[order])
    candidate = np.append(found, len(order))[np.searchsorted(found, starts)]
    rows = np.append(order, -1)[candidate]
    return np.where((candidate < limit) & _same_place(events, order[starts], rows), rows, -1)


def _same_place(events: Table, a: Rows, b: Rows) -> Array:
    device, address = events["device"], events["address"]
    return np.logical_and(device[a] == device[b], address[a] == address[b])


def _time_at(events: Table, rows: Rows) -> Array:
    return np.where(rows >= 0, events["time_ns"][rows], -1)
