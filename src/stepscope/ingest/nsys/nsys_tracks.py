"""Tracks of an Nsight Systems recording: the threads of its processes, and their streams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from stepscope.arrays import Ids, Ids32

_BITS = 24
_MASK = (1 << _BITS) - 1
_LAST_DEVICE = np.iinfo(np.int32).max  # a damaged file may say any number


def process_of(identity: Ids) -> Ids:
    """The process in a globalPid or globalTid, -1 where it is unknown.

    Example:
        >>> process_of(np.array([0x1000001000002, -1])).tolist()
        [1, -1]
    """
    return np.where(identity < 0, -1, (identity >> _BITS) & _MASK)


class Tracks:
    """Numbers tracks in order of first appearance.

    Args:
        names: of threads, by globalTid.
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = names
        self._numbers: dict[tuple[str, int, int, int], int] = {}
        self._rows: list[dict[str, Any]] = []

    def threads(self, identity: Ids) -> Ids32:
        """The tracks of threads by globalTid, int32, shape (n,)."""
        known, place = np.unique(identity, return_inverse=True)
        numbers = [self._thread(one) for one in known.tolist()]
        return np.array(numbers, np.int32)[place]

    def streams(self, process: Ids, device: Ids, stream: Ids) -> Ids32:
        """The tracks of the streams of processes, int32, shape (n,)."""
        device = np.clip(device, 0, _LAST_DEVICE)
        keys = np.stack([process, device, stream], axis=1)
        known, place = np.unique(keys, axis=0, return_inverse=True)
        numbers = [self._stream(*key) for key in known.tolist()]
        return np.array(numbers, np.int32)[place.reshape(-1)]

    def columns(self) -> dict[str, Any]:
        """Columns of the tracks table."""
        names = ("kind", "name", "process", "thread", "device", "stream")
        found = {name: [row[name] for row in self._rows] for name in names}
        return {**found, "rank": [0] * len(self._rows)}

    def _thread(self, identity: int) -> int:
        process, thread = (identity >> _BITS) & _MASK, identity & _MASK
        name = f"{self._names.get(identity, 'thread')} {thread}"
        return self._number(("thread", process, thread, 0), kind="cpu", name=name,
                            process=str(process), thread=str(thread), device=-1,
                            stream=-1)  # fmt: skip

    def _stream(self, process: int, device: int, stream: int) -> int:
        return self._number(("stream", process, device, stream), kind="device",
                            name=f"stream {stream}", process=f"{process} GPU {device}",
                            thread=str(stream), device=device, stream=stream)  # fmt: skip

    def _number(self, key: tuple[str, int, int, int], **row: Any) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self._rows)
            self._rows.append(row)
        return self._numbers[key]
