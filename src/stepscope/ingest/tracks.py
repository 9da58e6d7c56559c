"""Tracks: one for each pair of process and thread that an event names."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.ingest.categories import on_device
from stepscope.ingest.recorded import Recorded
from stepscope.trace.schema import TRACK_KINDS
from stepscope.trace.table import Text

_STREAM = re.compile(r"^stream (\d{1,9})$")


def track_columns(recorded: Recorded, rank: int) -> dict[str, Any]:
    """Columns of the tracks table."""
    keys = list(recorded.columns.tracks)
    device = _on_device(recorded, len(keys))
    on = device.tolist()
    return {
        "kind": Text(device.astype(np.int8), TRACK_KINDS),
        "name": _names(recorded, keys),
        "rank": np.full(len(keys), rank),
        "process": [str(process) for process, _ in keys],
        "thread": [str(thread) for _, thread in keys],
        # A device that the recorder does not number is the first: only the CPU's tracks have none.
        "device": [
            max(_number(one), 0) if yes else -1 for (one, _), yes in zip(keys, on, strict=True)
        ],
        "stream": [_stream(key[1]) if yes else -1 for key, yes in zip(keys, on, strict=True)],
    }


def _on_device(recorded: Recorded, count: int) -> NDArray[np.bool_]:
    rows = recorded.rows(lambda phase, category: phase == "X" and on_device(category))
    result = np.zeros(count, np.bool_)
    result[recorded.track[rows]] = True
    return result


def _names(recorded: Recorded, keys: list[tuple[Any, Any]]) -> list[str]:
    labels = recorded.columns.labels
    processes = {key[0]: label for key, label in labels.items() if key[2] == "process_name"}
    return [
        labels.get((process, thread, "thread_name"))
        or (f"{processes[process]} {thread}" if process in processes else f"thread {thread}")
        for process, thread in keys
    ]


def _stream(thread: Any) -> int:
    """Recorders of 2021 called the thread of stream 7 "stream 7"."""
    found = _STREAM.match(thread) if isinstance(thread, str) else None
    return int(found[1]) if found else _number(thread)


def _number(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value < 2**31 else -1
