"""Reader of XLA profiles, `.xplane.pb`: what `jax.profiler.trace` writes.

A plane is the host or a device, a line one of its threads or streams. Threads of one number are one
track, whichever plane they come from: the recorder of the GPU's runtime has a plane of its own.

Source: xplane.proto, xplane_schema.cc and xplane_builder.h (https://github.com/openxla/xla).
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from contextlib import closing
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from stepscope.errors import IngestError
from stepscope.ingest.distinct import distinct_rows
from stepscope.ingest.hlo import METADATA_PLANE, Instruction, Programs
from stepscope.ingest.recorded import LONGEST_NS
from stepscope.ingest.stream import Progress, chunks
from stepscope.ingest.tally import Tally
from stepscope.ingest.xarrows import ArrowEnds
from stepscope.ingest.xevents import Batch, EventReader
from stepscope.ingest.xjson import Further
from stepscope.ingest.xmemory import Allocations
from stepscope.ingest.xnames import Naming
from stepscope.ingest.xspace import Plane, Source, read_space
from stepscope.ingest.xtracks import Track, Tracks
from stepscope.trace.arguments import Arguments, Block
from stepscope.trace.builder import Parts, build
from stepscope.trace.interner import Interner
from stepscope.trace.schema import CATEGORIES
from stepscope.trace.table import Text
from stepscope.trace.trace import Metadata, Trace

LONGEST_BYTES = 2 << 30
_LONGEST_PS = LONGEST_NS * 1000
_LATEST_NS = 2**62
Codes = NDArray[np.int64]
_SIZE = re.compile(r"\bsize:(\d{1,18})\b")
_COLUMNS = (
    "start_ns", "duration_ns", "track", "scope", "correlation", "run", "name", "category", "bytes",
    "source",
)  # fmt: skip


def read_xplane(file: BinaryIO, gzipped: bool, progress: Progress) -> Trace:
    """Read an XLA profile, as every `Reader` does."""
    tally = Tally()
    with closing(chunks(file, gzipped, tally, progress)) as pieces:
        source = Source(_whole(pieces), tally)
    planes, said = read_space(source)
    for severity in ("errors", "warnings"):
        for text in said[severity]:
            tally(f"recorder_{severity[:-1]}", f"the recorder says: {text}")
    profile = _Profile(source, planes)
    parts = profile.parts(said["hostnames"])
    tally(
        "damaged_message",
        "a message does not end where its length says, or cannot be read; read as far as it goes",
        source.damage.count,
    )
    parts.warnings = tally.rows()
    if not len(parts.events["start_ns"]):
        names = ", ".join(repr(plane.name) for plane in planes[:8] if plane.name) or "no plane"
        raise IngestError(
            f"expected an XLA profile with events, found none that could be read in {names}"
            + "".join(f"; {message}" for _, message, _ in parts.warnings)
        )
    return build(parts)


def _whole(pieces: Generator[bytes, None, None]) -> bytes:
    taken, size = [], 0
    for piece in pieces:
        taken.append(piece)
        size += len(piece)
        if size > LONGEST_BYTES:
            raise IngestError(
                f"expected an XLA profile of at most {LONGEST_BYTES >> 30} GiB, the most that a "
                "protobuf message may have; found more: record fewer steps"
            )
    return b"".join(taken)


class _Profile:
    """Gathers the columns of all planes."""

    def __init__(self, source: Source, planes: Sequence[Plane]) -> None:
        self._source, self._planes = source, planes
        self._programs = Programs(source, planes)
        self._words: Interner[str] = Interner()
        self._names: Interner[str] = Interner()
        self._tracks = Tracks()
        self._chunks: list[dict[str, Codes]] = []
        self._naming = Naming(self._names, source.tally)
        self._memory = Allocations(self._names, self._words)
        self._arrows = ArrowEnds()
        self._blocks: list[Block] = []
        self._read = 0

    def parts(self, hosts: Sequence[str]) -> Parts:
        """Everything for the builder."""
        for plane in self._planes:
            if plane.name != METADATA_PLANE:
                self._add(plane)
        columns = _joined(self._chunks)
        columns["correlation"] = self._tracks.tied(columns, columns.pop("run"))
        near = self._near(columns["start_ns"])
        columns = {name: column[near] for name, column in columns.items()}
        events: dict[str, Any] = {
            **columns,
            "name": Text(columns["name"].astype(np.int32), list(self._names)),
            "category": Text(columns["category"].astype(np.int8), CATEGORIES),
            "scope": Text(columns["scope"].astype(np.int32), list(self._words)),
        }
        return Parts(
            events=events,
            tracks=self._tracks.columns(),
            arrows=self._arrows.arrows(),
            memory=self._memory.columns(columns["source"]),
            metadata=self._metadata(hosts),
            arguments=Arguments(tuple(self._blocks)),
        )

    def _near(self, start: Codes) -> NDArray[np.bool_]:
        """Events that lie near the others; the rest is counted and set aside."""
        if not len(start):
            return np.zeros(0, np.bool_)
        near: NDArray[np.bool_] = np.abs(start - np.median(start)) <= LONGEST_NS
        said = "an event lies over 104 days from the others; set aside"
        self._source.tally("far_timestamp", said, int((~near).sum()))
        return near

    def _metadata(self, hosts: Sequence[str]) -> Metadata:
        stats = {plane.name: plane.stats for plane in self._planes if plane.stats}
        jax = any(name.startswith("jit_") for name in self._programs.names) or any(
            name.startswith("PjitFunction") for name in self._names
        )
        return Metadata(
            framework="jax" if jax else "xla",
            devices=tuple(self._tracks.devices(self._planes)),
            properties={
                "hostnames": list(hosts),
                "planes": {
                    name: {
                        key: value for key, value in found.items() if not isinstance(value, tuple)
                    }
                    for name, found in stats.items()
                },
            },
        )

    # -- one plane

    def _add(self, plane: Plane) -> None:
        tracks = self._tracks.of(plane)
        reader = EventReader(self._source, plane, self._words)
        for batch in reader:
            self._add_batch(plane, batch, tracks)

    def _add_batch(self, plane: Plane, batch: Batch, tracks: list[Track]) -> None:
        columns = self._times(plane, batch)
        rows = columns.pop("rows")
        columns["track"] = np.array([one.number for one in tracks])[batch.line]
        columns["scope"], place = self._compiled(batch)
        columns["correlation"], columns["run"] = map(batch.integers, ("correlation_id", "run_id"))
        columns["name"], columns["category"] = self._naming.of(plane, batch, tracks, columns)
        columns["bytes"] = self._bytes(batch)
        columns = {name: column[rows] for name, column in columns.items()}
        columns["source"] = np.arange(self._read, self._read + len(rows))
        self._read += len(rows)
        self._chunks.append(columns)
        self._arrows.take(batch, rows, columns)
        self._memory.take(batch, rows, columns)
        self._pack(batch.arguments(rows, place), columns["source"])

    def _pack(self, texts: list[bytes], source: Codes) -> None:
        kept = np.flatnonzero([bool(text) for text in texts])
        if len(kept):
            self._blocks.append(Block.of(source[kept], [texts[row] for row in kept.tolist()]))

    def _times(self, plane: Plane, batch: Batch) -> dict[str, Codes]:
        """Start and duration, rounded to the nearest nanosecond, and the events that have them."""
        tally = self._source.tally
        line = np.array([one.timestamp_ns for one in plane.lines], np.int64)[batch.line]
        offset, length = batch.offset_ps, batch.duration_ps
        wrong = (length < 0) | (length > _LONGEST_PS)
        tally("long_duration", "an event lasts less than nothing or over 104 days; taken as 0",
              int(wrong.sum()))  # fmt: skip
        length = np.where(wrong, 0, length)
        told = (line >= 0) & (line < _LATEST_NS) & (offset >= 0) & (offset <= _LONGEST_PS)
        told &= batch.timed
        tally("bad_timestamp", "an event has no time that can be told; set aside",
              int((~told).sum()))  # fmt: skip
        offset = np.where(told, offset, 0)
        start = np.where(told, line, 0) + (offset + 500) // 1000
        end = np.where(told, line, 0) + offset // 1000 + (offset % 1000 + length + 500) // 1000
        return {"start_ns": start, "duration_ns": end - start, "rows": np.flatnonzero(told)}

    def _compiled(self, batch: Batch) -> tuple[Codes, Further]:
        """Code of each event's scope, as compiled, else as told; and the place in the source."""
        numbers = map(batch.texts, ("tf_op", "hlo_op", "hlo_module"))
        keys, which = distinct_rows(*numbers, batch.integers("program_id"))
        words = list(self._words)
        found = [self._instruction(words, *key) for key in keys]
        told = [words[key[0]].rstrip(":") if key[0] >= 0 else "" for key in keys]
        scopes = [self._scope(one.scope or text) for one, text in zip(found, told, strict=True)]
        return np.array(scopes, np.int64)[which], Further(
            "source", [o.source for o in found], which
        )

    def _instruction(
        self, words: list[str], scope: int, op: int, module: int, program: int
    ) -> Instruction:
        if op < 0:
            return Instruction()
        return self._programs.find(program, words[module] if module >= 0 else "", words[op])

    def _scope(self, text: str) -> int:
        return self._words[text] if "/" in text else -1  # else it names an argument, or nothing

    def _bytes(self, batch: Batch) -> Codes:
        details = batch.texts("memcpy_details")
        ids, inverse = np.unique(details, return_inverse=True)
        words = list(self._words)
        found = [_SIZE.search(words[one]) if one >= 0 else None for one in ids.tolist()]
        sizes = np.array([int(one[1]) if one else -1 for one in found], np.int64)
        result: Codes = sizes[inverse]
        return result


def _joined(chunks: Sequence[dict[str, Codes]]) -> dict[str, Codes]:
    empty = np.zeros(0, np.int64)
    return {name: np.concatenate([empty, *(one[name] for one in chunks)]) for name in _COLUMNS}
