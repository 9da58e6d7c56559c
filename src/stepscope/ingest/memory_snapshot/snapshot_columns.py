"""The parts of a memory snapshot as columns: history, segments, blocks and call stacks.

Source: torch/cuda/_memory_viz.py and torch/csrc/cuda/memory_snapshot.cpp (names of the fields).
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepscope.arrays import Array
from stepscope.errors import IngestError
from stepscope.trace.interner import Interner

ACTIONS = (
    "alloc", "free_requested", "free_completed", "free", "segment_alloc", "segment_free",
    "segment_map", "segment_unmap", "oom", "snapshot", "workspace_snapshot",
)  # fmt: skip
_LIMIT = 1 << 63
EVENT_COLUMNS = ("time_us", "action", "address", "bytes", "stream", "device_free_bytes", "stack")


@dataclass
class KnownStack:
    """A list of frames that was read before, by its stack's number; no key of a dict, as it."""

    number: int


class Stacks:
    """Call stacks as a tree of frames: a stack is the number of its innermost frame."""

    def __init__(self) -> None:
        self.frames: Interner[tuple[int, str, str, int]] = Interner()
        self._known: dict[int, tuple[Any, int]] = {}

    def of(self, frames: Any) -> int:
        """The number of a stack, -1 for an empty one.

        Args:
            frames: dicts with name, filename and line, the innermost first.
        """
        if isinstance(frames, KnownStack):
            return frames.number
        if not isinstance(frames, list) or not frames:
            return -1
        known = self._known.get(id(frames))
        if known is None:
            known = self._known[id(frames)] = (frames, self.number_of(frames))
        return known[1]

    def number_of(self, frames: Sequence[Any]) -> int:
        parent = -1
        for frame in reversed(frames):
            if isinstance(frame, dict):
                name, file = str(frame.get("name", "")), str(frame.get("filename", ""))
                parent = self.frames[parent, name, file, small(frame.get("line")) % (1 << 31)]
        return parent

    def columns(self) -> dict[str, Any]:
        """Columns of the table `stacks`."""
        rows = list(self.frames)
        parents, names, files, lines = zip(*rows, strict=True) if rows else ((), (), (), ())
        return {"parent": parents, "function": names, "file": files, "line": lines}


class History:
    """What the allocators did, as columns, filled while the pickle is read."""

    def __init__(self, stacks: Stacks) -> None:
        self._stacks = stacks
        self._devices: dict[int, tuple[list[Any], dict[str, array[int]]]] = {}
        self.actions: Interner[str] = Interner()

    def take(self, target: list[Any], items: list[Any]) -> bool:
        """Use up the events of a list; false where its items are no events.

        They are emptied, as the memo of the pickle holds each of them until the end.
        """
        if not isinstance(items[0] if items else None, dict):
            return False
        if "action" not in items[0] and id(target) not in self._devices:
            return False
        if not all(isinstance(item, dict) for item in items) or not isinstance(target, list):
            raise IngestError("expected events in the history of the snapshot, found other data")
        columns = self._devices.setdefault(id(target), (target, _empty()))[1]
        for item in items:
            self._add(columns, item)
            item.clear()
        return True

    def _add(self, columns: dict[str, array[int]], event: Mapping[str, Any]) -> None:
        columns["time_us"].append(small(event.get("time_us", -1)))
        columns["action"].append(self.actions[str(event.get("action", ""))])
        columns["address"].append(small(event.get("addr", -1)))
        columns["bytes"].append(small(event.get("size", 0)))
        columns["stream"].append(small(event.get("stream", 0)))
        columns["device_free_bytes"].append(small(event.get("device_free", -1)))
        columns["stack"].append(self._stacks.of(event.get("frames")))

    def add_rows(self, target: list[Any], rows: Mapping[str, Array]) -> None:
        """Add events of a list as columns of int64."""
        columns = self._devices.setdefault(id(target), (target, _empty()))[1]
        for name, values in rows.items():
            columns[name].frombytes(np.ascontiguousarray(values, np.int64).tobytes())

    def columns(self, device_traces: Any) -> dict[str, Array]:
        """The columns of all devices, one after the other, with the column `device`."""
        parts: dict[str, list[Array]] = {name: [] for name in (*EVENT_COLUMNS, "device")}
        for device, events in enumerate(device_traces if isinstance(device_traces, list) else ()):
            _, columns = self._devices.get(id(events), (None, None))
            if columns:
                for name, values in columns.items():
                    parts[name].append(np.frombuffer(values, np.int64))
                parts["device"].append(np.full(len(columns["action"]), device, np.int64))
        return {name: _joined(found) for name, found in parts.items()}


def segment_columns(
    segments: Any, stacks: Stacks
) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """Columns of the tables `segments` and `blocks`.

    Raises:
        IngestError: if they are no list of dictionaries.
    """
    if not isinstance(segments, (list, tuple)):
        raise IngestError("expected a list of segments in the snapshot, found other data")
    found: dict[str, list[Any]] = {
        name: [] for name in ("device", "address", "bytes", "stream", "pool", "expandable", "stack")
    }
    blocks: dict[str, list[Any]] = {
        name: [] for name in ("segment", "address", "bytes", "requested_bytes", "state", "stack")
    }
    for segment in segments:
        if not isinstance(segment, dict):
            raise IngestError("expected segments in the snapshot, found other data")
        found["device"].append(small(segment.get("device", 0)))
        found["address"].append(small(segment.get("address", 0)))
        found["bytes"].append(small(segment.get("total_size", 0)))
        found["stream"].append(small(segment.get("stream", 0)))
        found["pool"].append(str(segment.get("segment_type", "")))
        found["expandable"].append(int(bool(segment.get("is_expandable"))))
        found["stack"].append(stacks.of(segment.get("frames")))
        _add_blocks(blocks, segment, len(found["device"]) - 1, stacks)
    return found, blocks


def _add_blocks(
    columns: dict[str, list[Any]], segment: Mapping[str, Any], number: int, stacks: Stacks
) -> None:
    """Append the blocks of a segment; older snapshots name no addresses, so they are added up."""
    address = small(segment.get("address", 0))
    blocks = segment.get("blocks", ())
    if not isinstance(blocks, (list, tuple)) or not all(isinstance(one, dict) for one in blocks):
        raise IngestError("expected blocks in a segment of the snapshot, found other data")
    for block in blocks:
        size = small(block.get("size", 0))
        columns["segment"].append(number)
        columns["address"].append(small(block.get("address", address)))
        columns["bytes"].append(size)
        columns["requested_bytes"].append(small(block.get("requested_size", -1)))
        columns["state"].append(str(block.get("state", "")))
        columns["stack"].append(stacks.of(block.get("frames") or _legacy_frames(block)))
        address += size


def _legacy_frames(block: Mapping[str, Any]) -> Any:
    """The frames of a block as PyTorch before 2.1 wrote them, in a `history`."""
    history = block.get("history")
    first = history[0] if isinstance(history, list) and history else {}
    return first.get("frames") if isinstance(first, dict) else None


def small(value: Any) -> int:
    """An integer that fits 64 bits; addresses beyond are folded, anything else is -1."""
    if not isinstance(value, int):
        return -1
    return value if -_LIMIT <= value < _LIMIT else value % _LIMIT


def _empty() -> dict[str, array[int]]:
    return {name: array("q") for name in EVENT_COLUMNS}


def _joined(parts: list[Array]) -> Array:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)
