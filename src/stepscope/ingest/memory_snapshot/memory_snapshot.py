"""Reader of the snapshots that `torch.cuda.memory._dump_snapshot` writes."""

from __future__ import annotations

import gzip
import mmap
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

from stepscope.arrays import Array, Times
from stepscope.errors import IngestError
from stepscope.ingest.byte_stream import Progress
from stepscope.ingest.memory_snapshot.compiled_history import CompiledHistory
from stepscope.ingest.memory_snapshot.history_lifetimes import find_allocations
from stepscope.ingest.memory_snapshot.safe_pickle import load
from stepscope.ingest.memory_snapshot.snapshot_columns import History, Stacks, segment_columns
from stepscope.trace.clock_mapping import clock_of, with_times
from stepscope.trace.memory_schema import ALLOCATIONS, BLOCKS, MEMORY_EVENTS, SEGMENTS, STACKS
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Metadata, Trace

_KEYS = ("segments", "device_traces")
_MICROSECOND = 1000
_TABLES = ("segments", "blocks", "allocations", "memory_events", "stacks")


def is_snapshot(head: bytes) -> bool:
    """Whether a file's first bytes are a pickle that names a snapshot's parts."""
    is_pickle = head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")
    return is_pickle and any(key.encode() in head for key in (*_KEYS, "allocator_settings"))


def read_snapshot(file: BinaryIO, gzipped: bool, progress: Progress) -> Trace:
    """A trace with the tables of a memory snapshot and no events.

    Args:
        file: an open file at its start.
        gzipped: whether it is gzip.
        progress: called with the number of bytes read.

    Raises:
        IngestError: if it holds anything but plain data, or is no snapshot.
    """
    trace = _snapshot(_content(file, gzipped))
    progress(file.seek(0, 2))
    return trace


def with_snapshot(trace: Trace, data: bytes) -> Trace:
    """A capture's trace with the tables of the snapshot that lies in it, on the trace's clock."""
    snapshot = _snapshot(data)
    shift = snapshot.metadata.origin_ns - clock_of(trace.metadata)

    def moved(times: Times) -> Times:
        return np.maximum(times + shift, 0)  # the history is longer; less than 0 would be null

    for name in _TABLES:
        trace = trace.with_table(with_times(snapshot[name], moved))
    return trace.with_metadata(
        properties={**trace.metadata.properties, **snapshot.metadata.properties}
    )


def _snapshot(data: Any) -> Trace:
    stacks = Stacks()
    history = History(stacks)
    snapshot = load(data, history.take, CompiledHistory(data, history, stacks))
    if isinstance(snapshot, list):  # as PyTorch before 2.0 wrote it
        snapshot = {"segments": snapshot}
    if not isinstance(snapshot, dict) or not any(key in snapshot for key in _KEYS):
        raise IngestError("expected a memory snapshot with segments, found another pickle")
    segments, blocks = segment_columns(snapshot.get("segments") or (), stacks)
    events = history.columns(snapshot.get("device_traces"))
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
    held = Table(SEGMENTS, {**segments, "pool": Text.of(segments["pool"])})
    cells = Table(BLOCKS, {**blocks, "state": Text.of(blocks["state"])})
    frames = stacks.columns()
    texts = {name: Text.of(frames[name]) for name in ("function", "file")}
    settings = snapshot.get("allocator_settings")
    metadata = Metadata(
        framework="pytorch", origin_ns=origin,
        properties={"allocator_settings": settings if isinstance(settings, dict) else {}},
    )  # fmt: skip
    tables = [recorded, held, cells, Table(STACKS, {**frames, **texts})]
    allocations = Table(ALLOCATIONS, find_allocations(recorded, held, cells))
    return Trace({table.schema.name: table for table in (*tables, allocations)}, metadata)


def _times(time_us: Array) -> tuple[Array, int]:
    """Nanoseconds since the first event, and when that was; in order, where none are known."""
    if not len(time_us) or (time_us < 0).any():
        return np.arange(len(time_us), dtype=np.int64), 0
    first = int(time_us.min())
    return (time_us - first) * _MICROSECOND, first * _MICROSECOND


def _content(file: BinaryIO, gzipped: bool) -> Any:
    if gzipped:
        return gzip.decompress(file.read())
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
