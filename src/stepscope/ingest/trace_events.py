"""Reader of trace-event JSON: PyTorch's (Kineto's) of 2021 to today, and any other tool's.

Source: Trace Event Format (Chrome); Kineto's output_json.cpp for what its categories and arguments
mean (https://github.com/pytorch/kineto/blob/main/libkineto/src/output_json.cpp).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from stepscope.errors import IngestError
from stepscope.ingest.categories import category, on_device
from stepscope.ingest.columns import Columns
from stepscope.ingest.decode import EventReader
from stepscope.ingest.metadata import metadata_of
from stepscope.ingest.slices import Mark, pair
from stepscope.ingest.stream import Progress, chunks
from stepscope.ingest.tally import Tally
from stepscope.ingest.times import INVALID
from stepscope.trace.builder import Arrows, Parts, build
from stepscope.trace.schema import CATEGORIES, TRACK_KINDS
from stepscope.trace.table import Text
from stepscope.trace.trace import Trace

_LONGEST_US = 2**43  # 101 days: a longer slice is a recorder's mistake
_FAR_NS = 2**61
_ASYNC = {"b": False, "S": False, "e": True, "F": True}
_ARROWS = {"s": False, "t": True, "f": True}
_MEMORY_NAME = "[memory]"
_DEVICE_TYPES = {0: "cpu", 1: "cuda", 6: "hip", 9: "xla", 12: "xpu", 13: "mps", 19: "mtia"}


def read_trace_events(file: BinaryIO, gzipped: bool, progress: Progress) -> Trace:
    """Read a JSON trace.

    Args:
        file: an open binary file at its start.
        gzipped: whether it is gzip.
        progress: called with bytes read since the last call.

    Returns:
        The trace with its recorded facts; nothing derived yet.

    Raises:
        IngestError: if it is no trace, or holds no event that could be read.
    """
    tally, columns = Tally(), Columns()
    reader = EventReader(chunks(file, gzipped, tally, progress), tally)
    for records in reader:
        columns.add(records)
    return build(_Assembly(columns, tally, reader.properties).parts())


class _Assembly:
    """Sorts the columns read by what their phase means."""

    def __init__(self, columns: Columns, tally: Tally, properties: Mapping[str, Any]) -> None:
        self.columns, self.tally, self.properties = columns, tally, properties
        self.phases: list[tuple[str, str]] = list(columns.phases)  # type: ignore[arg-type]
        self.phase = columns.column("phase")
        self.time = columns.column("time_ns")
        self.track = columns.column("track")
        self.name = Text(columns.column("name"), list(columns.names))  # type: ignore[arg-type]
        self.usable = self._usable()

    def parts(self) -> Parts:
        """Everything for the builder."""
        rows, start, duration, track = self._slices()
        memory = self._rows(lambda phase, cat: phase in "iI") & self._is_memory()
        parts = Parts(
            events=self._events(rows, start, duration, track),
            tracks=self._tracks(),
            arrows=self._arrows(),
            instants=self._instants(~memory),
            counters=self._counters(),
            memory=self._memory(np.flatnonzero(memory)),
            metadata=metadata_of(self.properties, self.tally),
            arguments=self.columns.arguments(),
            warnings=self.tally.rows(),
        )
        if not len(rows) and not len(parts.instants.get("time_ns", ())):
            raise IngestError(
                "expected trace events, found none that could be read"
                + "".join(f"; {message}" for _, message, _ in self.tally.rows())
            )
        return parts

    def _usable(self) -> NDArray[np.bool_]:
        """Rows with a time that can be told; the others are counted and set aside."""
        valid = self.time != INVALID
        if valid.any():
            middle = np.median(self.time[valid])
            valid &= np.abs(self.time.astype(np.float64) - middle) < _FAR_NS
        self.tally(
            "bad_timestamp", "an event has no timestamp that can be told; set aside",
            int((~valid).sum()),
        )  # fmt: skip
        return valid

    def _rows(self, test: Any) -> NDArray[np.bool_]:
        wanted = np.array([bool(test(phase, cat)) for phase, cat in self.phases] or [False])
        result: NDArray[np.bool_] = wanted[self.phase] & self.usable
        return result

    # -- slices

    def _slices(self) -> tuple[NDArray[Any], ...]:
        """Row, start, duration and track of every slice."""
        whole = np.flatnonzero(self._rows(lambda phase, cat: phase == "X"))
        duration = self._durations(whole)
        last = int((self.time[whole] + duration).max(initial=self._last_time()))
        found = [(whole, self.time[whole], duration, self.track[whole]), self._stacked(last)]
        found.append(self._async(last))
        row, start, length, track = (np.concatenate(part) for part in zip(*found, strict=True))
        return row, start, length, track

    def _last_time(self) -> int:
        return int(self.time[self.usable].max(initial=0))

    def _durations(self, rows: NDArray[np.intp]) -> NDArray[np.int64]:
        us = self.columns.column("duration_us")[rows]
        missing, negative, long = np.isnan(us), us < 0, us > _LONGEST_US
        self.tally("no_duration", "a slice has no duration that can be told; taken as 0",
                   int(missing.sum()))  # fmt: skip
        self.tally("negative_duration", "a slice has a negative duration; taken as 0",
                   int(negative.sum()))  # fmt: skip
        self.tally("long_duration", "a slice lasts over 101 days; taken as 0", int(long.sum()))
        return np.rint(np.where(missing | negative | long, 0, us) * 1000).astype(np.int64)

    def _stacked(self, last: int) -> tuple[NDArray[Any], ...]:
        marks: dict[int, list[Mark]] = defaultdict(list)
        for row in np.flatnonzero(self._rows(lambda phase, cat: phase in ("B", "E"))).tolist():
            marks[self.track[row]].append(self._mark(row, self._letter(row) == "E"))
        return self._paired(marks, {track: track for track in marks}, last)

    def _async(self, last: int) -> tuple[NDArray[Any], ...]:
        """Async slices go to a track of their own for each process and category."""
        marks: dict[tuple[Any, ...], list[Mark]] = defaultdict(list)
        tracks: dict[tuple[Any, ...], int] = {}
        identity = self.columns.column("identity")
        for row in np.flatnonzero(self._rows(lambda phase, cat: phase in _ASYNC)).tolist():
            letter, cat = self.phases[self.phase[row]]
            pid = list(self.columns.tracks)[self.track[row]][0]  # type: ignore[index]
            key = (pid, cat, int(identity[row]))
            marks[key].append(self._mark(row, _ASYNC[letter]))
            tracks[key] = self.columns.tracks[pid, f"async {cat}".strip()]
        return self._paired(marks, tracks, last)

    def _mark(self, row: int, ends: bool) -> Mark:
        return Mark(row, int(self.time[row]), self.name[row] or "", ends)

    def _letter(self, row: int) -> str:
        return self.phases[self.phase[row]][0]

    def _paired(
        self, marks: Mapping[Any, list[Mark]], tracks: Mapping[Any, int], last: int
    ) -> tuple[NDArray[Any], ...]:
        found = [
            (one.row, one.start_ns, one.end_ns - one.start_ns, tracks[key])
            for key, group in marks.items()
            for one in pair(group, last, self.tally)
        ]
        row, start, duration, track = np.array(found, np.int64).reshape(-1, 4).T
        return row, start, duration, track

    def _events(
        self, rows: NDArray[Any], start: NDArray[Any], duration: NDArray[Any], track: NDArray[Any]
    ) -> dict[str, Any]:
        columns = self.columns
        return {
            "track": track,
            "name": self.name.take(rows),
            "category": self._categories(rows),
            "start_ns": start,
            "duration_ns": duration,
            "correlation": columns.column("correlation")[rows],
            "sequence": columns.column("sequence")[rows],
            "forward_thread": columns.column("forward_thread")[rows],
            "bytes": columns.column("bytes")[rows],
            "source": columns.column("source")[rows],
        }

    def _categories(self, rows: NDArray[Any]) -> Text:
        """Category by (recorded category, name), worked out once per distinct pair."""
        cats = self.phase[rows].astype(np.int64)
        pairs, inverse = np.unique(cats * (len(self.name.values) + 1) + self.name.codes[rows],
                                   return_inverse=True)  # fmt: skip
        number = {name: code for code, name in enumerate(CATEGORIES)}
        codes = [
            number[category(self.phases[cat][1], self.name.values[name])]
            for cat, name in (divmod(one, len(self.name.values) + 1) for one in pairs.tolist())
        ]
        return Text(np.array(codes, np.int8)[inverse] if codes else inverse, CATEGORIES)

    # -- tracks

    def _tracks(self) -> dict[str, Any]:
        keys: list[tuple[Any, Any]] = list(self.columns.tracks)  # type: ignore[arg-type]
        device = self._device_tracks(len(keys))
        rank = _rank(self.properties)
        return {
            "kind": Text(device.astype(np.int8), TRACK_KINDS),
            "name": [self._track_name(pid, tid) for pid, tid in keys],
            "rank": np.full(len(keys), rank),
            "process": [str(pid) for pid, _ in keys],
            "thread": [str(tid) for _, tid in keys],
            "device": [_small(pid) if on else -1 for (pid, _), on in zip(keys, device, strict=True)],
            "stream": [_small(tid) if on else -1 for (_, tid), on in zip(keys, device, strict=True)],
        }

    def _device_tracks(self, count: int) -> NDArray[np.bool_]:
        result = np.zeros(count, np.bool_)
        result[self.track[self._rows(lambda phase, cat: phase == "X" and on_device(cat))]] = True
        return result

    def _track_name(self, pid: Any, tid: Any) -> str:
        labels = self.columns.labels
        found = labels.get((pid, tid, "thread_name"))
        process = next(
            (value for (p, _, name), value in labels.items() if p == pid and name == "process_name"),
            None,
        ) if len(labels) < 10_000 else None  # fmt: skip
        return found or (f"{process} {tid}" if process else f"thread {tid}")

    # -- the rest

    def _arrows(self) -> Arrows:
        rows = np.flatnonzero(self._rows(lambda phase, cat: phase in _ARROWS))
        heads = np.array([_ARROWS.get(phase, False) for phase, _ in self.phases] or [False])
        kinds = Text.of([cat for _, cat in self.phases] or [""])
        return Arrows(
            kind=kinds.take(self.phase[rows]),
            identity=self.columns.column("identity")[rows].astype(np.int64),
            is_head=heads[self.phase[rows]],
            time_ns=self.time[rows],
            track=self.track[rows].astype(np.int32),
        )

    def _instants(self, keep: NDArray[np.bool_]) -> dict[str, Any]:
        """Every phase that is not told elsewhere, so that nothing recorded goes missing."""
        elsewhere = {"X", "B", "E", "C", *_ASYNC, *_ARROWS}
        rows = np.flatnonzero(self._rows(lambda phase, cat: phase not in elsewhere) & keep)
        phases = Text.of([phase for phase, _ in self.phases] or [""])
        cats = Text.of([cat for _, cat in self.phases] or [""])
        return {
            "time_ns": self.time[rows],
            "track": self.track[rows],
            "name": self.name.take(rows),
            "category": cats.take(self.phase[rows]),
            "phase": phases.take(self.phase[rows]),
            "source": self.columns.column("source")[rows],
        }

    def _counters(self) -> dict[str, Any]:
        rows = np.flatnonzero(self._rows(lambda phase, cat: phase == "C")).tolist()
        source, arguments = self.columns.column("source"), self.columns.arguments()
        values = [
            (row, series, float(value))
            for row in rows
            for series, value in arguments.of(int(source[row])).items()
            if isinstance(value, int | float)
        ]
        at = np.array([row for row, _, _ in values], np.intp)
        return {
            "time_ns": self.time[at],
            "track": self.track[at],
            "name": self.name.take(at),
            "series": [series for _, series, _ in values],
            "value": [value for _, _, value in values],
        }

    def _is_memory(self) -> NDArray[np.bool_]:
        return self.name.mask(_MEMORY_NAME) & (self.columns.column("allocation") != 0)

    def _memory(self, rows: NDArray[np.intp]) -> dict[str, Any]:
        if not len(rows):
            return {}
        columns = self.columns
        kind, index = columns.column("device_type")[rows], columns.column("device_id")[rows]
        return {
            "time_ns": self.time[rows],
            "track": self.track[rows],
            "rank": np.full(len(rows), _rank(self.properties)),
            "device": [_device(*pair_) for pair_ in zip(kind.tolist(), index.tolist(), strict=True)],
            "address": columns.column("address")[rows],
            "bytes": columns.column("allocation")[rows],
            "allocated_bytes": columns.column("allocated")[rows],
        }


def _device(kind: int, index: int) -> str:
    name = _DEVICE_TYPES.get(kind, f"device type {kind}")
    return name if index < 0 else f"{name}:{index}"


def _rank(properties: Mapping[str, Any]) -> int:
    info = properties.get("distributedInfo")
    rank = info.get("rank", 0) if isinstance(info, Mapping) else 0
    return rank if isinstance(rank, int) else 0


def _small(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value < 2**31 else -1
