"""Events without a duration: allocations, counters, flow arrows, and every other mark."""

from typing import Any

import numpy as np

from stepscope.base.arrays import Rows
from stepscope.read.chrome.event_columns import RecordedEvents
from stepscope.read.chrome.slices import ASYNC, STACKED
from stepscope.trace.arguments import parse
from stepscope.trace.builder import Arrows

ARROWS = {"s": False, "t": True, "f": True}
_ELSEWHERE = {"X", "C", *STACKED, *ASYNC, *ARROWS}
_MEMORY_NAME = "[memory]"
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


def memory_columns(recorded: RecordedEvents, rank: int) -> dict[str, Any]:
    """Columns of the memory table, empty if no allocation was recorded."""
    rows = _memory_rows(recorded)
    if not len(rows):
        return {}
    columns = recorded.columns
    kinds, indices = columns.column("device_type")[rows], columns.column("device_id")[rows]
    return {
        "time_ns": recorded.time_ns[rows],
        "track": recorded.track[rows],
        "rank": np.full(len(rows), rank),
        "device": list(map(_device, kinds.tolist(), indices.tolist())),
        "address": columns.column("address")[rows],
        "bytes": columns.column("allocation")[rows],
        "allocated_bytes": columns.column("allocated")[rows],
        "reserved_bytes": columns.column("reserved")[rows],
    }


def _memory_rows(recorded: RecordedEvents) -> Rows:
    rows = recorded.of_phase("i", "I")
    named = recorded.name.take(rows).mask(_MEMORY_NAME)
    sized = recorded.columns.column("allocation")[rows] != 0
    return np.asarray(rows[named & sized], np.intp)


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
