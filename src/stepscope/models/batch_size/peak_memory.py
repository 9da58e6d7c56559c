"""The contents of memory at its peak: each live allocation and its kind; they add up exactly.

Storages that training keeps (parameters, buffers, gradients, optimizer state) are known by their
address before and after the recorded steps. What else forward allocates and keeps is an
activation; what backward and the optimizer allocate for themselves, or an operator frees before it
returns, is temporary. What was there before and is none of these is untracked.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
import numpy as np

from stepscope.facts.annotate.attribution import Attribution
from stepscope.trace.memory_schema import STORAGE_KINDS
from stepscope.trace.schema import STAGES
from stepscope.trace.trace import Trace

KINDS = (
    "weights",
    "buffers",
    "gradients",
    "optimizer_state",
    "activations",
    "inputs",
    "temporaries",
    "untracked",
)
_KEPT = {kind: name.replace(" ", "_") for kind, name in STORAGE_KINDS.items()}
_BY_STAGE = {
    "data_loading": "inputs",
    "transfer": "inputs",
    "forward": "activations",
    "loss": "activations",
    "backward": "temporaries",
    "optimizer": "temporaries",
    "zero_grad": "temporaries",
}


class KeptStorage(msgspec.Struct, frozen=True):
    """Memory that training keeps from step to step, as `capture.memory.storages` lists it.

    Attributes:
        kind: parameter, buffer, gradient, optimizer_state or input.
        path: of its module, if any.
        lines: file and line of what made a parameter.
    """

    address: int
    bytes: int
    device: str
    kind: str
    path: str
    lines: list[tuple[str, int]] = []


class KeptStorages(msgspec.Struct, frozen=True):
    """Storages before and after the recorded steps."""

    before: list[KeptStorage] = []
    after: list[KeptStorage] = []


@dataclass(frozen=True)
class PeakBlock:
    """One allocation alive at the peak.

    Attributes:
        event: the event that allocated it, -1 for what was there before.
        storage: the storage it is, as the process listed it; None where it is none.
    """

    bytes: int
    kind: str
    event: int
    storage: KeptStorage | None = None


@dataclass(frozen=True)
class Footprint:
    """The peak.

    Attributes:
        kept: the activations of that step that forward keeps for backward.
    """

    step: int
    bytes: int
    blocks: tuple[PeakBlock, ...]
    kept: tuple[PeakBlock, ...]

    def split(self) -> dict[str, int]:
        """Bytes by kind; they add up to the peak; empty where memory is unknown."""
        if not self.blocks:
            return {}
        result = dict.fromkeys(KINDS, 0)
        for block in self.blocks:
            result[block.kind] += block.bytes
        return result


def find_footprint(trace: Trace, storages: KeptStorages, attribution: Attribution) -> Footprint | None:
    """The highest peak of the recorded steps, on the device that holds most.

    Returns:
        The footprint; None where nothing was allocated.
    """
    ledger = _Ledger(trace, storages, attribution)
    steps, times = trace["steps"], ledger.times
    if not len(steps) or not ledger.rows:
        return None
    inside = np.flatnonzero((times >= steps["start_ns"][0]) & (times < steps["end_ns"][-1]))
    if not len(inside):
        return None
    peak = max(inside.tolist(), key=lambda place: ledger.rows[place].total)
    number = int(np.searchsorted(steps["start_ns"], times[peak], side="right")) - 1
    turn = _end_of_forward(trace, int(steps["step"][number]), int(steps["end_ns"][number]))
    last = int(np.searchsorted(times, turn)) - 1
    kept = [block for block in ledger.blocks(last) if block.kind == "activations"]
    rows = ledger.rows[peak]
    return Footprint(int(steps["step"][number]), rows.total, tuple(ledger.blocks(peak)), tuple(kept))


def _end_of_forward(trace: Trace, step: int, end: int) -> int:
    """When the step's first backward event begins; the end of the step where it has none."""
    events = trace.events
    chosen = (events["step"] == step) & (events["forward_event"] >= 0)
    starts = events["start_ns"][chosen]
    return int(starts.min()) if len(starts) else end


@dataclass(frozen=True)
class _MemoryChange:
    place: int
    time: int
    address: int
    bytes: int
    total: int
    event: int


def _device(trace: Trace, storages: KeptStorages) -> str:
    """The one that the model is on, else the one that has the highest total."""
    held: dict[str, int] = {}
    for storage in storages.after:
        held[storage.device] = held.get(storage.device, 0) + storage.bytes
    known = set(trace["memory"].text("device"))
    held = {device: size for device, size in held.items() if device in known}
    return max(held, key=lambda device: held[device], default="cpu")


class _Ledger:
    """Every allocation and release on one device, in order."""

    def __init__(self, trace: Trace, storages: KeptStorages, attribution: Attribution) -> None:
        device = _device(trace, storages)
        self._attribution = attribution
        self.rows = _rows(trace, device)
        self.times = np.array([row.time for row in self.rows], np.int64)
        self._before, self._after = (
            {storage.address: storage for storage in listed if storage.device == device}
            for listed in (storages.before, storages.after)
        )
        self._last, _ = _alive(self.rows)
        events = trace.events
        self._event_end = events["start_ns"] + events["duration_ns"]
        forward = events["start_ns"][events["stage"] == STAGES.index("forward")]
        self._first_forward = int(forward.min()) if len(forward) else 0

    def blocks(self, place: int) -> list[PeakBlock]:
        """The live blocks after the row at `place`; they add up to that row's total."""
        alive, freed = _alive(self.rows[: place + 1])
        ends = self._ends(place)
        fresh = [self._block(row, ends.get(row.address)) for row in alive.values()]
        return [*fresh, *self._earlier(freed, place, sum(block.bytes for block in fresh))]

    def _ends(self, place: int) -> dict[int, int]:
        ends: dict[int, int] = {}
        for row in self.rows[place + 1 :]:
            if row.bytes < 0:
                ends.setdefault(row.address, row.time)
        return ends

    def _block(self, row: _MemoryChange, freed: int | None) -> PeakBlock:
        still = self._last.get(row.address)
        # The storage that the block still is when the steps are over.
        storage = self._after.get(row.address) if still and still.place == row.place else None
        kind = self._kind(row, freed) if storage is None else _KEPT[storage.kind]
        return PeakBlock(row.bytes, kind, row.event, storage)

    def _kind(self, row: _MemoryChange, freed: int | None) -> str:
        stage = int(self._attribution.stage[row.event]) if row.event >= 0 else -1
        if stage < 0:
            return "untracked"
        root = int(self._attribution.root[row.event])
        if root >= 0 and freed is not None and freed <= self._event_end[root]:
            return "temporaries"
        if STAGES[stage] == "other" and row.time < self._first_forward:
            return "inputs"
        return _BY_STAGE.get(STAGES[stage], "untracked")

    def _earlier(self, freed: set[int], place: int, fresh_bytes: int) -> list[PeakBlock]:
        """Blocks allocated before the first row and still alive, known storages first."""
        known = [
            PeakBlock(storage.bytes, _KEPT[storage.kind], -1, storage)
            for address, storage in self._before.items()
            if address not in freed
        ]
        total = self.rows[place].total
        rest = total - fresh_bytes - sum(block.bytes for block in known)
        return [*known, PeakBlock(rest, "untracked", -1)] if rest > 0 else known


def _rows(trace: Trace, device: str) -> list[_MemoryChange]:
    memory = trace["memory"]
    chosen = np.flatnonzero(memory.text("device").mask(device) & (memory["allocated_bytes"] >= 0))
    columns = (
        memory[name][chosen].tolist() for name in ("time_ns", "address", "bytes", "allocated_bytes", "event")
    )
    return [_MemoryChange(place, *values) for place, values in enumerate(zip(*columns, strict=True))]


def _alive(rows: Iterable[_MemoryChange]) -> tuple[dict[int, _MemoryChange], set[int]]:
    """Allocations that nobody freed, by address, and the addresses of earlier ones freed."""
    alive: dict[int, _MemoryChange] = {}
    freed: set[int] = set()
    for row in rows:
        if row.bytes > 0:
            alive[row.address] = row
        elif alive.pop(row.address, None) is None:
            freed.add(row.address)
    return alive, freed
