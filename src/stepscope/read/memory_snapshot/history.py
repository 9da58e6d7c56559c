"""The history and the blocks of a memory snapshot as columns; events are read by compiled code.

`native/decode_history.cpp` reads events as Python's pickler writes them, hundreds of times faster
than the unpickler, and leaves everything else to that, event by event: the first of each list,
texts that come for the first time, and whatever is odd.

Source: torch/cuda/_memory_viz.py and torch/csrc/cuda/memory_snapshot.cpp (names of the fields)."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepscope.base.arrays import Array, Ids32, IntArray
from stepscope.base.compiled.library import function
from stepscope.errors import IngestError
from stepscope.read.memory_snapshot.safe_pickle import Memo
from stepscope.read.shared import columns_of
from stepscope.trace.sets import Interner
from stepscope.trace.spill import SpillFile

ACTIONS = (
    "alloc", "free_requested", "free_completed", "free", "segment_alloc", "segment_free", "segment_map",
    "segment_unmap", "oom", "snapshot", "workspace_snapshot",
)  # fmt: skip
_LIMIT = 1 << 63  # of what fits 64 bits with a sign
_LONGEST_NAME = 1000  # characters of a name of a file or function
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
        """The number of a stack of frames (dicts), the innermost first; -1 for an empty one."""
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
                name, file = text_of(frame.get("name")), text_of(frame.get("filename"))
                parent = self.frames[parent, name, file, small(frame.get("line")) % (1 << 31)]
        return parent

    def columns(self) -> dict[str, Any]:
        """Columns of the table `stacks`."""
        return columns_of(("parent", "function", "file", "line"), list(self.frames))


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
            if item:  # not used up before
                self._add(columns, item)
                item.clear()
        return True

    def _add(self, columns: dict[str, array[int]], event: Mapping[str, Any]) -> None:
        columns["time_us"].append(small(event.get("time_us", -1)))
        columns["action"].append(self.actions[text_of(event.get("action"))])
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

    def columns(self, device_traces: Any, most_rows: int) -> dict[str, Array]:
        """The columns of all devices, one after the other, with the column `device`."""
        rows = 0
        parts: dict[str, list[Array]] = {name: [] for name in (*EVENT_COLUMNS, "device")}
        for device, events in enumerate(device_traces if isinstance(device_traces, list) else ()):
            _, columns = self._devices.get(id(events), (None, None))
            if columns:
                rows += len(columns["action"])
                check_rows(rows, most_rows)
                for name, values in columns.items():
                    parts[name].append(np.frombuffer(values, np.int64))
                parts["device"].append(np.full(len(columns["action"]), device, np.int64))
        return {name: _joined(found) for name, found in parts.items()}


_SEGMENT = ("device", "address", "bytes", "stream", "pool", "expandable", "private", "stack")
_BLOCK = ("segment", "address", "bytes", "requested_bytes", "state", "stack")


def segment_columns(segments: Any, stacks: Stacks, most_rows: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Columns of the tables `segments` and `blocks`; IngestError if they are no list of dictionaries."""
    if not isinstance(segments, (list, tuple)):
        raise IngestError("expected a list of segments in the snapshot, found other data")
    held: list[tuple[Any, ...]] = []
    blocks: list[tuple[Any, ...]] = []
    for segment in segments:
        if not isinstance(segment, dict):
            raise IngestError("expected segments in the snapshot, found other data")
        numbers = (small(segment.get(key, 0)) for key in ("device", "address", "total_size", "stream"))
        pool, expandable = text_of(segment.get("segment_type")), int(bool(segment.get("is_expandable")))
        owner = segment.get("segment_pool_id")  # (0, 0) for no pool of its own
        private = int(isinstance(owner, (list, tuple)) and any(owner))
        held.append((*numbers, pool, expandable, private, stacks.of(segment.get("frames"))))
        blocks += _blocks(segment, len(held) - 1, stacks)
        check_rows(len(held) + len(blocks), most_rows)
    return columns_of(_SEGMENT, held), columns_of(_BLOCK, blocks)


def _blocks(segment: Mapping[str, Any], number: int, stacks: Stacks) -> Iterator[tuple[Any, ...]]:
    """The blocks of a segment; older snapshots name no addresses, so they are added up."""
    address = small(segment.get("address", 0))
    blocks = segment.get("blocks", ())
    if not isinstance(blocks, (list, tuple)) or not all(isinstance(block, dict) for block in blocks):
        raise IngestError("expected blocks in a segment of the snapshot, found other data")
    for block in blocks:
        size = small(block.get("size", 0))
        asked, state = small(block.get("requested_size", -1)), text_of(block.get("state"))
        stack = stacks.of(block.get("frames") or _legacy_frames(block))
        yield number, small(block.get("address", address)), size, asked, state, stack  # as `_BLOCK`
        address += size


def _legacy_frames(block: Mapping[str, Any]) -> Any:
    """The frames of a block as PyTorch before 2.1 wrote them, in a `history`."""
    history = block.get("history")
    first = history[0] if isinstance(history, list) and history else {}
    return first.get("frames") if isinstance(first, dict) else None


def check_rows(rows: int, most: int) -> None:
    """IngestError if the file has more rows than bytes for them."""
    if rows > most:
        raise IngestError("the snapshot repeats parts of itself; it is damaged or was made to do harm")


def text_of(value: Any) -> str:
    """A text, cut to what names need: a few frames could repeat one of megabytes; else empty."""
    return value[:_LONGEST_NAME] if isinstance(value, str) else ""


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


_FIELDS = ("time_us", "action", "addr", "size", "stream", "device_free", "frames")  # of `EVENT_COLUMNS`
_KEYS = {name: place for place, name in enumerate(_FIELDS)}
_IGNORED = len(_FIELDS)  # any other key: versions of PyTorch add some
_NO_STACK, _FIRST_RUN = -2, -10
_ROWS = 1 << 17  # events at a time, each of three values of the memo: itself, its stack and its `pool_id`
_REFERENCES = 1 << 22  # to frames, of all events that are read at a time
_MOST_FAILURES = 50  # vain attempts in a row: this file is written otherwise


class CompiledHistory:
    """Reads many events of a list in a pickle (bytes or a memory map) at once."""

    def __init__(self, data: Any, history: History, stacks: Stacks) -> None:
        self._data, self._history, self._stacks = data, history, stacks
        self._octets = np.frombuffer(data, np.uint8)
        self._columns = np.full(1024, -1, np.int8)
        self._actions = np.full(1024, -1, np.int32)
        self._stack_of = np.full(4 * _ROWS, _NO_STACK, np.int32)
        self._known_texts = 0  # values of the memo that are in the tables above
        self._numbered: dict[bytes, int] = {}  # stacks by the values of the memo in them
        self._end = 0  # the end of the memo when it was last looked at
        self._failures = 0
        self._rows = np.empty((_ROWS, len(EVENT_COLUMNS)), np.int64)
        self._references = np.empty(_REFERENCES, np.int32)
        self._ends = np.empty(_ROWS, np.int64)

    def starts_after(self, item: Any) -> bool:
        """Whether an item is an event; after many vain attempts none is."""
        return self._failures < _MOST_FAILURES and isinstance(item, dict) and "action" in item

    def read(self, at: int, target: list[Any], memo: Memo) -> int:
        """Read events until something else comes; where that begins."""
        memo.known = self._known
        start = at
        while True:
            self._learn(memo)
            count, at = self._read_some(at, target, memo)
            if count < _ROWS:
                break
        self._failures = 0 if at > start else self._failures + 1
        if isinstance(self._data, SpillFile):
            self._data.release()  # the memory of what was read
        return at

    def _known(self, index: int) -> Any:
        """A value of the memo that was read here: the stack of a list, or an event, used up."""
        if index >= self._end:
            raise KeyError(index)
        stack = int(self._stack_of[index])
        return {} if stack == _NO_STACK else KnownStack(stack)

    def _learn(self, memo: Memo) -> None:
        """Note which values of the memo are keys and actions, as far as Python has read them."""
        end = len(memo)
        self._stack_of = _roomy(self._stack_of, end + 3 * _ROWS + 2, _NO_STACK)
        self._stack_of[self._end : end] = _NO_STACK
        fresh = range(self._end, end)
        texts = {index: text for index in fresh if isinstance(text := dict.get(memo, index), str)}
        if texts:
            self._known_texts = max(texts) + 1
            self._columns = _roomy(self._columns, self._known_texts, -1)
            self._actions = _roomy(self._actions, self._known_texts, -1)
        for index, text in texts.items():
            self._columns[index] = _KEYS.get(text, _IGNORED)
            self._actions[index] = self._history.actions[text] if text in ACTIONS else -1
        self._end = end

    def _read_some(self, at: int, target: list[Any], memo: Memo) -> tuple[int, int]:
        out = np.zeros(4, np.int64)
        texts = self._columns, self._actions, self._known_texts
        stacks = self._stack_of, self._end, len(self._stack_of)
        room = self._rows, _ROWS, self._references, _REFERENCES, self._ends
        decode = function("stepscope_decode_history")
        decode(self._octets, len(self._octets), at, *texts, *stacks, *room, out)
        count, end, memoized, runs = out.tolist()
        numbers = self._numbers(memo, runs)
        added = self._stack_of[self._end : memoized]
        added[:] = _numbered(added, numbers)
        memo.skipped += memoized - self._end
        self._end = memoized
        named = dict(zip(EVENT_COLUMNS, self._rows[:count].T, strict=True))
        named["stack"] = _numbered(named["stack"], numbers)
        if count:
            self._history.add_rows(target, named)
        return count, end

    def _numbers(self, memo: Memo, runs: int) -> Ids32:
        """The numbers of the distinct stacks of a call, by the values of the memo in each."""
        ends = self._ends[:runs].tolist()
        found = (self._references[start:end] for start, end in zip([0, *ends], ends, strict=False))
        return np.array([self._number(run, memo) for run in found], np.int32)

    def _number(self, run: Ids32, memo: Memo) -> int:
        key = run.tobytes()
        number = self._numbered.get(key)
        if number is None:
            number = self._numbered[key] = self._stacks.number_of([memo[index] for index in run.tolist()])
        return number


def _numbered(codes: IntArray, numbers: Ids32) -> IntArray:
    """Stacks of this call by their numbers; others have theirs already."""
    if not len(numbers):
        return codes
    runs = codes <= _FIRST_RUN
    return np.where(runs, numbers[np.where(runs, _FIRST_RUN - codes, 0)], codes)


def _roomy(table: Any, size: int, fill: int) -> Any:
    """The table with room for at least so many values."""
    if size <= len(table):
        return table
    return np.concatenate([table, np.full(max(size, 2 * len(table)) - len(table), fill, table.dtype)])
