"""Reads an allocator's history with the compiled library, `native/decode_history.cpp`.

It reads events as Python's pickler writes them, hundreds of times faster than the unpickler, and
leaves everything else to that, event by event: the first of each list, texts that come for the
first time, and whatever is odd.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

from stepscope.arrays import Ids32, IntArray
from stepscope.compiled.library import function
from stepscope.ingest.memory_snapshot.safe_pickle import Memo
from stepscope.ingest.memory_snapshot.snapshot_columns import (
    ACTIONS,
    EVENT_COLUMNS,
    History,
    KnownStack,
    Stacks,
)

_KEYS = {
    "time_us": 0, "action": 1, "addr": 2, "size": 3, "stream": 4, "device_free": 5, "frames": 6,
    "user_metadata": 7, "compile_context": 7,
}  # fmt: skip
_NO_STACK, _FIRST_RUN = -2, -10
_ROWS = 1 << 17  # events at a time
_REFERENCES = 1 << 22
_MOST_FAILURES = 50


class CompiledHistory:
    """Reads many events of a list at once.

    Args:
        data: the pickle, bytes or a memory map.
        history: takes the events.
        stacks: numbers their call stacks.
    """

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
        self._forget(start, at)
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
        self._stack_of = _roomy(self._stack_of, end + 2 * _ROWS + 2, _NO_STACK)
        self._stack_of[self._end : end] = _NO_STACK
        fresh = range(self._end, end)
        texts = {index: text for index in fresh if isinstance(text := dict.get(memo, index), str)}
        if texts:
            self._known_texts = max(texts) + 1
            self._columns = _roomy(self._columns, self._known_texts, -1)
            self._actions = _roomy(self._actions, self._known_texts, -1)
        for index, text in texts.items():
            self._columns[index] = _KEYS.get(text, -1)
            self._actions[index] = self._history.actions[text] if text in ACTIONS else -1
        self._end = end

    def _read_some(self, at: int, target: list[Any], memo: Memo) -> tuple[int, int]:
        out = np.zeros(4, np.int64)
        function("stepscope_decode_history")(
            self._octets, len(self._octets), at, self._columns, self._actions, self._known_texts,
            self._stack_of, self._end, len(self._stack_of), self._rows, _ROWS, self._references,
            _REFERENCES, self._ends, out,
        )  # fmt: skip
        count, end, memoized, runs = out.tolist()
        numbers = self._numbers(memo, runs)
        added = self._stack_of[self._end : memoized]
        added[:] = _numbered(added, numbers)
        memo.skipped += memoized - self._end
        self._end = memoized
        rows = self._rows[:count].T
        named = dict(zip(EVENT_COLUMNS, rows, strict=True))
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
            frames = [memo[index] for index in run.tolist()]
            number = self._numbered[key] = self._stacks.number_of(frames)
        return number

    def _forget(self, start: int, end: int) -> None:
        """Let the system take back the memory of what was read from a mapped file."""
        if isinstance(self._data, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
            if end - first >= mmap.PAGESIZE:
                self._data.madvise(mmap.MADV_DONTNEED, first, end - first)


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
    return np.concatenate(
        [table, np.full(max(size, 2 * len(table)) - len(table), fill, table.dtype)]
    )
