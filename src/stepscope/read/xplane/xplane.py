"""Reader of XLA profiles, `.xplane.pb`, which `jax.profiler.trace` writes.

A plane is the host or a device; a line is one of its threads or streams. Threads with the same
number are one track, even from different planes: the GPU runtime's recorder has its own plane.

Source: xplane.proto, xplane_schema.cc and xplane_builder.h (https://github.com/openxla/xla).
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np

from stepscope.base.arrays import Integers, Rows
from stepscope.errors import IngestError
from stepscope.read.byte_stream import Progress, whole
from stepscope.read.shared import LONGEST_NS, EventNames, WarningLog, log_note, near_others
from stepscope.read.xplane.compiled_events import CompiledEvents
from stepscope.read.xplane.hlo import METADATA_PLANE, HloPrograms
from stepscope.read.xplane.xevents import Batch, PlaneReader
from stepscope.read.xplane.xspace import Plane, XSpaceFile, read_space
from stepscope.read.xplane.xtracks import Naming, PlaneTrack, PlaneTracks
from stepscope.trace.arguments import ArgumentBlock, Arguments
from stepscope.trace.builder import Arrows, Parts, build
from stepscope.trace.schema import CATEGORIES, KERNEL_KINDS
from stepscope.trace.sets import Interner
from stepscope.trace.table import Text
from stepscope.trace.trace import Metadata, Trace

_LONGEST_PS = LONGEST_NS * 1000
_LATEST_NS = 2**62  # differences of such times fit 64 bits
_SIZE = re.compile(r"\bsize:(\d{1,18})\b")
_COLUMNS = (
    "start_ns", "duration_ns", "track", "scope", "kind", "correlation", "run", "name", "category", "bytes",
    "source", "origin",
)  # fmt: skip


def read_xplane(file: BinaryIO, gzipped: bool, progress: Progress) -> Trace:
    """Read an XLA profile, as every `Reader` does."""
    log = WarningLog()
    source = XSpaceFile(whole(file, gzipped, log, progress), log)
    planes, texts = read_space(source)
    for severity in ("errors", "warnings"):
        for text in texts[severity]:
            log_note(log, text, otherwise=f"recorder_{severity[:-1]}")
    parts = _Profile(source, planes).parts(texts["hostnames"])
    log("damaged_message", "a message is damaged or truncated; read up to the damage", source.damage.count)
    parts.warnings = log.rows()
    if not len(parts.events["start_ns"]):
        names = ", ".join(repr(plane.name) for plane in planes[:8] if plane.name) or "no planes"
        raise IngestError(
            f"the XLA profile holds no readable event ({names})"
            + "".join(f"; {message}" for _, message, _ in parts.warnings)
        )
    return build(parts)


class _Profile:
    def __init__(self, source: XSpaceFile, planes: Sequence[Plane]) -> None:
        self._source, self._planes = source, planes
        self._programs = HloPrograms(source, planes)
        self._words: Interner[str] = Interner()
        self._compiled = CompiledEvents(self._programs, self._words)
        self._names = EventNames()
        self._tracks = PlaneTracks()
        self._chunks: list[dict[str, Integers]] = []
        self._naming = Naming(self._names, source.log)
        self._memory = Allocations(self._names, self._words)
        self._arrow_ends: list[Integers] = []
        self._blocks: list[ArgumentBlock] = []
        self._read = 0

    def parts(self, hosts: Sequence[str]) -> Parts:
        """The input of the trace builder."""
        for plane in self._planes:
            if plane.name != METADATA_PLANE:
                self._add(plane)
        self._names.report(self._source.log)
        columns = _joined(self._chunks)
        columns["correlation"] = self._tracks.correlations(columns, columns.pop("run"))
        near = near_others(columns["start_ns"], self._source.log)
        columns = {name: column[near] for name, column in columns.items()}
        events: dict[str, Any] = {
            **columns,
            "name": Text(columns["name"].astype(np.int32), list(self._names)),
            "category": Text(columns["category"].astype(np.int8), CATEGORIES),
            "scope": Text(columns["scope"].astype(np.int32), list(self._words)),
            "kind": Text(columns["kind"].astype(np.int8), KERNEL_KINDS),
        }
        return Parts(
            events=events,
            tracks=self._tracks.columns(),
            arrows=_arrows(self._arrow_ends),
            memory=self._memory.columns(columns["source"]),
            metadata=self._metadata(hosts),
            arguments=Arguments(tuple(self._blocks)),
            tables=self._compiled.tables(),
        )

    def _metadata(self, hosts: Sequence[str]) -> Metadata:
        stats = {plane.name: plane.stats for plane in self._planes if plane.stats}
        return Metadata(
            framework=self._framework(),
            devices=tuple(self._tracks.devices(self._planes)),
            properties={
                "hostnames": list(hosts),
                "programs": self._programs.buffers,
                "program_shapes": self._programs.shapes,
                "program_loops": {name: loops._asdict() for name, loops in self._programs.loops.items()},
                "arguments": self._programs.arguments,
                "planes": {
                    name: {key: value for key, value in found.items() if not isinstance(value, tuple)}
                    for name, found in stats.items()
                },
            },
        )

    def _framework(self) -> str:
        named = (("jax", "PjitFunction"), ("tensorflow", "EagerLocalExecute"))
        if any(name.startswith(("jit_", "pmap_")) for name in self._programs.names):
            return "jax"
        return next((it for it, call in named if any(name.startswith(call) for name in self._names)), "xla")

    # -- one plane

    def _add(self, plane: Plane) -> None:
        tracks = self._tracks.of(plane)
        for batch in PlaneReader(self._source, plane, self._words):
            self._add_batch(plane, batch, tracks)

    def _add_batch(self, plane: Plane, batch: Batch, tracks: list[PlaneTrack]) -> None:
        columns = self._times(plane, batch)
        rows = columns.pop("rows")
        columns["track"] = np.array([track.number for track in tracks])[batch.line]
        columns["scope"], columns["kind"], columns["origin"], further = self._compiled.of(plane, batch)
        columns["correlation"], columns["run"] = map(batch.integers, ("correlation_id", "run_id"))
        columns["name"], columns["category"] = self._naming.of(plane, batch, tracks, columns)
        columns["bytes"] = self._bytes(batch)
        columns = {name: column[rows] for name, column in columns.items()}
        columns["source"] = np.arange(self._read, self._read + len(rows))
        self._read += len(rows)
        self._chunks.append(columns)
        self._arrow_ends += _arrow_ends(batch, rows, columns)
        self._memory.take(batch, rows, columns)
        self._blocks += ArgumentBlock.written(columns["source"], batch.arguments(rows, further))

    def _times(self, plane: Plane, batch: Batch) -> dict[str, Integers]:
        """Start and duration, rounded to the nearest nanosecond, and the events that have them."""
        log = self._source.log
        line = np.array([line.timestamp_ns for line in plane.lines], np.int64)[batch.line]
        offset, length = batch.offset_ps, batch.duration_ps
        wrong = (length < 0) | (length > _LONGEST_PS)
        message = "an event has a negative duration or one over 104 days; 0 is used"
        log("long_duration", message, int(wrong.sum()))
        length = np.where(wrong, 0, length)
        valid = (line >= 0) & (line < _LATEST_NS) & (offset >= 0) & (offset <= _LONGEST_PS)
        valid &= batch.timed
        log("bad_timestamp", "skipped an event without a valid timestamp", int((~valid).sum()))
        offset = np.where(valid, offset, 0)
        start = np.where(valid, line, 0) + (offset + 500) // 1000
        end = np.where(valid, line, 0) + offset // 1000 + (offset % 1000 + length + 500) // 1000
        return {"start_ns": start, "duration_ns": end - start, "rows": np.flatnonzero(valid)}

    def _bytes(self, batch: Batch) -> Integers:
        ids, inverse = np.unique(batch.texts("memcpy_details"), return_inverse=True)
        words = list(self._words)
        found = [_SIZE.search(words[code]) if code >= 0 else None for code in ids.tolist()]
        return np.array([int(match[1]) if match else -1 for match in found], np.int64)[inverse]


def _joined(chunks: Sequence[dict[str, Integers]]) -> dict[str, Integers]:
    empty = np.zeros(0, np.int64)
    return {name: np.concatenate([empty, *(chunk[name] for chunk in chunks)]) for name in _COLUMNS}


_TAIL, _HEAD = ("_pt", "_p"), ("_ct", "_c")


def _arrow_ends(batch: Batch, rows: Rows, columns: dict[str, Integers]) -> Iterator[Integers]:
    """Kind, number, side, time and track of the arrow ends among `rows` of a batch, shape (5, n)."""
    for is_head, (kind, identity) in enumerate((_TAIL, _HEAD)):
        number = batch.integers(identity)[rows]
        ends = np.flatnonzero(number != -1)
        side = np.full(len(rows), is_head)
        parts = (batch.integers(kind)[rows], number, side, columns["start_ns"], columns["track"])
        yield np.stack([part[ends] for part in parts])


def _arrows(ends: Sequence[Integers]) -> Arrows:
    """All arrow ends, kinds and numbers as codes."""
    kind, identity, is_head, time, track = np.concatenate([np.zeros((5, 0), np.int64), *ends], axis=1)
    kinds, code = np.unique(kind, return_inverse=True)
    return Arrows(
        kind=Text(code, [f"flow {number}" for number in kinds.tolist()]),
        identity=np.unique(identity, return_inverse=True)[1],
        is_head=is_head > 0,
        time_ns=time,
        track=track.astype(np.int32),
    )


_DEVICE = re.compile(r"^GPU_(\d+)_")
_RELEASE = "MemoryDeallocation"
_MEMORY_COLUMNS = ("time_ns", "track", "address", "bytes", "allocated_bytes", "allocator", "source")


class Allocations:
    """Collects the allocations of a file; `names` and `words` are texts by their codes."""

    def __init__(self, names: Interner[str], words: Interner[str]) -> None:
        self._names, self._words = names, words
        self._chunks = [np.zeros((len(_MEMORY_COLUMNS), 0), np.int64)]

    def take(self, batch: Batch, rows: Rows, columns: dict[str, Integers]) -> None:
        """Add the allocations among `rows` of a batch; `columns` are its event columns."""
        allocator, held = batch.texts("allocator_name")[rows], batch.integers("bytes_allocated")
        found = np.flatnonzero((allocator >= 0) & (held[rows] >= 0))
        size, address = (batch.integers(name)[rows] for name in ("allocation_bytes", "addr"))
        released = columns["name"] == self._names[_RELEASE]
        start, track, source = (columns[name] for name in ("start_ns", "track", "source"))
        change = np.where(released, -size, size)
        parts = (start, track, address, change, held[rows], allocator, source)  # as `_MEMORY_COLUMNS`
        self._chunks.append(np.stack([part[found] for part in parts]))

    def columns(self, kept: Integers) -> dict[str, Any]:
        """Columns of the memory table for the kept events; empty if there is none."""
        table = np.concatenate(self._chunks, axis=1)
        table = table[:, np.isin(table[_MEMORY_COLUMNS.index("source")], kept)]
        if not table.shape[1]:
            return {}
        columns: dict[str, Any] = dict(zip(_MEMORY_COLUMNS, table, strict=True))
        words = list(self._words)
        columns["device"] = [_device(words[code]) for code in columns.pop("allocator").tolist()]
        del columns["source"]
        return columns


def _device(allocator: str) -> str:
    found = _DEVICE.match(allocator)
    return f"gpu:{found[1]}" if found else allocator
