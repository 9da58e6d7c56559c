"""What memory holds at its peak, to the last byte: each allocation alive then, and what it is for.

Storages that training keeps (parameters, buffers, gradients, optimizer state) are known by their
address before and after the recorded steps. What else forward allocates and keeps is an
activation; what backward and the optimizer allocate for themselves, or an operator frees before it
returns, is temporary. What was there before and is none of these is untracked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepscope.predict.attribution import Attribution
from stepscope.trace.schema import STAGES
from stepscope.trace.trace import Trace

Json = dict[str, Any]
KINDS = ("weights", "buffers", "gradients", "optimizer_state", "activations", "inputs",
         "temporaries", "untracked")  # fmt: skip
_KEPT = {"parameter": "weights", "buffer": "buffers", "gradient": "gradients",
         "optimizer_state": "optimizer_state"}  # fmt: skip
_BY_STAGE = {"data_loading": "inputs", "transfer": "inputs", "forward": "activations",
             "loss": "activations", "backward": "temporaries", "optimizer": "temporaries",
             "zero_grad": "temporaries"}  # fmt: skip


@dataclass(frozen=True)
class Block:
    """One allocation alive at the peak.

    Attributes:
        bytes: its size.
        kind: one of KINDS.
        event: the event that allocated it, -1 for what was there before.
        storage: the storage it is, as the process listed it; None where it is none.
    """

    bytes: int
    kind: str
    event: int
    storage: Json | None = None


@dataclass(frozen=True)
class Footprint:
    """The peak.

    Attributes:
        step: the step that it is in.
        bytes: its height.
        blocks: what adds up to it.
    """

    step: int
    bytes: int
    blocks: tuple[Block, ...]

    def split(self) -> dict[str, int]:
        """Bytes by kind; they add up to the peak."""
        result = dict.fromkeys(KINDS, 0)
        for block in self.blocks:
            result[block.kind] += block.bytes
        return result


def find_footprint(
    trace: Trace, storages: Mapping[str, Sequence[Json]], attribution: Attribution
) -> Footprint | None:
    """The highest peak of the recorded steps, on the device that holds most.

    Args:
        trace: with every allocation of the steps.
        storages: rows of `list_storages` before and after the steps.
        attribution: of the trace's events.

    Returns:
        The footprint; None where nothing was allocated.
    """
    device = _device(trace, storages)
    rows = _rows(trace, device)
    steps = trace["steps"]
    if not rows or not len(steps):
        return None
    start, end = int(steps["start_ns"][0]), int(steps["end_ns"][-1])
    inside = [n for n, row in enumerate(rows) if start <= row.time < end]
    if not inside:
        return None
    peak = max(inside, key=lambda n: rows[n].total)
    before = {r["address"]: r for r in storages.get("before", ()) if r["device"] == device}
    after = {r["address"]: r for r in storages.get("after", ()) if r["device"] == device}
    alive, freed = _alive(rows[: peak + 1])
    last, _ = _alive(rows)
    ends = _ends(rows, peak)
    judge = _Judge(trace, attribution, after, last, ends)
    blocks = [judge.block(row) for row in alive.values()]
    blocks += _earlier(rows[0], before, freed, sum(b.bytes for b in blocks), rows[peak].total)
    number = int(np.searchsorted(steps["start_ns"], rows[peak].time, side="right")) - 1
    return Footprint(int(steps["step"][number]), rows[peak].total, tuple(blocks))


@dataclass(frozen=True)
class _Row:
    place: int
    time: int
    address: int
    bytes: int
    total: int
    event: int


def _rows(trace: Trace, device: str) -> list[_Row]:
    memory = trace["memory"]
    chosen = np.flatnonzero(memory.text("device").mask(device) & (memory["allocated_bytes"] >= 0))
    columns = (memory[name][chosen].tolist()
               for name in ("time_ns", "address", "bytes", "allocated_bytes", "event"))  # fmt: skip
    return [_Row(place, *values) for place, values in enumerate(zip(*columns, strict=True))]


def _device(trace: Trace, storages: Mapping[str, Sequence[Json]]) -> str:
    """The one that the model is on, else the one that has the highest total."""
    held: dict[str, int] = {}
    for row in storages.get("after", ()):
        held[row["device"]] = held.get(row["device"], 0) + row["bytes"]
    known = set(trace["memory"].text("device"))
    held = {device: size for device, size in held.items() if device in known}
    return max(held, key=lambda device: held[device], default="cpu")


def _alive(rows: Iterable[_Row]) -> tuple[dict[int, _Row], set[int]]:
    """Allocations that nobody freed, by address, and the addresses of earlier ones freed."""
    alive: dict[int, _Row] = {}
    freed: set[int] = set()
    for row in rows:
        if row.bytes > 0:
            alive[row.address] = row
        elif alive.pop(row.address, None) is None:
            freed.add(row.address)
    return alive, freed


def _ends(rows: Sequence[_Row], peak: int) -> dict[int, int]:
    """When the address of a block alive at the peak is freed."""
    ends: dict[int, int] = {}
    for row in rows[peak + 1 :]:
        if row.bytes < 0:
            ends.setdefault(row.address, row.time)
    return ends


class _Judge:
    """Tells what a block is for."""

    def __init__(
        self,
        trace: Trace,
        attribution: Attribution,
        after: Mapping[int, Json],
        last: Mapping[int, _Row],
        ends: Mapping[int, int],
    ) -> None:
        events = trace.events
        self._end = events["start_ns"] + events["duration_ns"]
        forward = np.flatnonzero(events["stage"] == STAGES.index("forward"))
        self._first_forward = int(events["start_ns"][forward[0]]) if len(forward) else 0
        self._attribution = attribution
        self._after, self._last, self._ends = after, last, ends

    def block(self, row: _Row) -> Block:
        storage = self._storage(row)
        if storage is not None:
            return Block(row.bytes, _KEPT[storage["kind"]], row.event, storage)
        return Block(row.bytes, self._kind(row), row.event)

    def _storage(self, row: _Row) -> Json | None:
        """The storage that the block still is when the steps are over."""
        still = self._last.get(row.address)
        return self._after.get(row.address) if still and still.place == row.place else None

    def _kind(self, row: _Row) -> str:
        if row.event < 0:
            return "untracked"
        stage = int(self._attribution.stage[row.event])
        if stage < 0:
            return "untracked"
        root = int(self._attribution.root[row.event])
        freed = self._ends.get(row.address)
        if root >= 0 and freed is not None and freed <= self._end[root]:
            return "temporaries"
        if STAGES[stage] == "other" and row.time < self._first_forward:
            return "inputs"
        return _BY_STAGE.get(STAGES[stage], "untracked")


def _earlier(
    first: _Row, before: Mapping[int, Json], freed: set[int], new_bytes: int, total: int
) -> list[Block]:
    """What was there before the first row and still is, known storages first."""
    known = [
        Block(row["bytes"], _KEPT[row["kind"]], -1, row)
        for address, row in before.items()
        if address not in freed
    ]
    rest = total - new_bytes - sum(block.bytes for block in known)
    return [*known, Block(rest, "untracked", -1)] if rest > 0 else known
