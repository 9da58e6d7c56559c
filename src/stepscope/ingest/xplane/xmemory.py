"""Allocations recorded by XLA's allocators, as rows of the table `memory`.

Source: the events MemoryAllocation and MemoryDeallocation of xla/tsl/framework/bfc_allocator.cc.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from stepscope.arrays import Codes, Rows
from stepscope.ingest.xplane.xevents import Batch
from stepscope.trace.interner import Interner

_DEVICE = re.compile(r"^GPU_(\d+)_")
_RELEASE = "MemoryDeallocation"
_COLUMNS = ("time_ns", "track", "address", "bytes", "allocated_bytes", "allocator", "source")


class Allocations:
    """Collects the allocations of a file; `names` and `words` are texts by their codes."""

    def __init__(self, names: Interner[str], words: Interner[str]) -> None:
        self._names, self._words = names, words
        self._chunks = [np.zeros((len(_COLUMNS), 0), np.int64)]

    def take(self, batch: Batch, rows: Rows, columns: dict[str, Codes]) -> None:
        """Add the allocations among `rows` of a batch; `columns` are its event columns."""
        allocator, held = batch.texts("allocator_name")[rows], batch.integers("bytes_allocated")
        found = np.flatnonzero((allocator >= 0) & (held[rows] >= 0))
        size, address = (batch.integers(name)[rows] for name in ("allocation_bytes", "addr"))
        released = columns["name"] == self._names[_RELEASE]
        parts = (
            columns["start_ns"], columns["track"], address, np.where(released, -size, size),
            held[rows], allocator, columns["source"],
        )  # fmt: skip
        self._chunks.append(np.stack([part[found] for part in parts]))

    def columns(self, kept: Codes) -> dict[str, Any]:
        """Columns of the memory table for the kept events; empty if there is none."""
        table = np.concatenate(self._chunks, axis=1)
        table = table[:, np.isin(table[_COLUMNS.index("source")], kept)]
        if not table.shape[1]:
            return {}
        columns: dict[str, Any] = dict(zip(_COLUMNS, table, strict=True))
        words = list(self._words)
        columns["device"] = [_device(words[code]) for code in columns.pop("allocator").tolist()]
        columns["rank"] = 0 * columns.pop("source")
        return columns


def _device(allocator: str) -> str:
    found = _DEVICE.match(allocator)
    return f"gpu:{found[1]}" if found else allocator
