"""Tracks: one for each pair of process and thread."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from stepscope.arrays import Mask
from stepscope.ingest.chrome.categories import on_device
from stepscope.ingest.chrome.event_columns import EventColumns
from stepscope.ingest.chrome.uncategorized import devices_by_label
from stepscope.trace.schema import TRACK_KINDS
from stepscope.trace.table import Text

_STREAM = re.compile(r"^stream (\d{1,9})$")


def track_columns(recorded: EventColumns, rank: int, streams: Mask) -> dict[str, Any]:
    """Columns of the tracks table; `streams` are the tracks that only labels call a stream."""
    keys = list(recorded.columns.tracks)
    device = _on_device(recorded, len(keys))
    device[: len(streams)] |= streams
    is_device = device.tolist()
    return {
        "kind": Text(device.astype(np.int8), TRACK_KINDS),
        "name": _names(recorded, keys, is_device),
        "rank": np.full(len(keys), rank),
        "process": [str(process) for process, _ in keys],
        "thread": [str(thread) for _, thread in keys],
        "device": _devices(recorded, keys, is_device, streams),
        "stream": [
            _stream(thread) if on_gpu else -1
            for (_, thread), on_gpu in zip(keys, is_device, strict=True)
        ],
    }


def _devices(
    recorded: EventColumns, keys: list[tuple[Any, Any]], is_device: list[bool], streams: Mask
) -> list[int]:
    """The device of each track, -1 for the CPU's; one without a recorded number is device 0.

    It is the process, but for streams that only labels know, which several processes of a device
    may have. Ranks that were merged into one file may each have a "GPU 0".
    """
    by_label = {keys[track][0] for track in np.flatnonzero(streams).tolist()}
    labeled = devices_by_label(recorded.columns).items()
    numbers = {process: number for process, number in labeled if process in by_label}
    return [
        numbers.get(process, max(_number(process), 0)) if on_gpu else -1
        for (process, _), on_gpu in zip(keys, is_device, strict=True)
    ]


def _on_device(recorded: EventColumns, count: int) -> Mask:
    rows = recorded.rows(lambda phase, category: phase in "XB" and on_device(category))
    result = np.zeros(count, np.bool_)
    result[recorded.track[rows]] = True
    return result


def _names(recorded: EventColumns, keys: list[tuple[Any, Any]], is_device: list[bool]) -> list[str]:
    """The name of each track; threads of several processes with one name get their process's."""
    labels = recorded.columns.labels
    processes = {key[0]: label for key, label in labels.items() if key[2] == "process_name"}
    names = [
        labels.get((process, thread, "thread_name"))
        or (f"{processes[process]} {thread}" if process in processes else f"thread {thread}")
        for process, thread in keys
    ]
    of_name: dict[str, set[Any]] = {}
    for (process, _), name, on_gpu in zip(keys, names, is_device, strict=True):
        of_name.setdefault(name, set()).update(() if on_gpu else (process,))
    return [
        f"{processes.get(process, f'process {process}')} {name}"
        if len(of_name[name]) > 1 and not on_gpu
        else name
        for (process, _), name, on_gpu in zip(keys, names, is_device, strict=True)
    ]


def _stream(thread: Any) -> int:
    """The number of a stream; recorders of 2021 wrote "stream 7" for stream 7."""
    found = _STREAM.match(thread) if isinstance(thread, str) else None
    return int(found[1]) if found else _number(thread)


def _number(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value < 2**31 else -1
