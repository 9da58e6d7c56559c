"""A tiny model of PyTorch's caching allocator, which writes the snapshots that tests read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MIB = 1 << 20


@dataclass
class Block:
    address: int
    size: int
    state: str = "inactive"
    frames: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Segment:
    address: int
    size: int
    blocks: list[Block]


def frame(file: str, line: int, name: str = "forward") -> dict[str, Any]:
    return {"name": name, "filename": file, "line": line}


class ModelAllocator:
    """First fit in segments of a fixed size; each block is split, and joined when free."""

    def __init__(self, segment_bytes: int = 20 * MIB) -> None:
        self.segment_bytes = segment_bytes
        self.segments: list[Segment] = []
        self.events: list[dict[str, Any]] = []
        self.time_us = 1000
        self.live: dict[int, int] = {}
        self.peak = 0
        self.peak_live: dict[int, int] = {}

    def alloc(self, size: int, frames: list[dict[str, Any]] | None = None) -> int:
        """Allocate; the address."""
        segment, block = self._fitting(size) or self._new_segment(size)
        if block.size > size:
            place = segment.blocks.index(block)
            segment.blocks.insert(place + 1, Block(block.address + size, block.size - size))
            block.size = size
        block.state, block.frames = "active_allocated", frames or []
        self._record("alloc", block.address, size, block.frames)
        self.live[block.address] = size
        if sum(self.live.values()) > self.peak:
            self.peak, self.peak_live = sum(self.live.values()), dict(self.live)
        return block.address

    def free(self, address: int) -> None:
        """Release a block and join it with free neighbors."""
        size = self.live.pop(address)
        self._record("free_requested", address, size)
        self._record("free_completed", address, size)
        for segment in self.segments:
            for block in segment.blocks:
                if block.address == address:
                    block.state, block.frames = "inactive", []
            _join(segment)

    def fail(self, size: int, device_free: int) -> None:
        """An allocation that fails."""
        self._record("oom", -1, size)
        self.events[-1]["device_free"] = device_free

    def snapshot(self, keep: int | None = None) -> dict[str, Any]:
        """As `torch.cuda.memory._snapshot` gives it, with the last `keep` entries of history."""
        events = self.events if keep is None else self.events[len(self.events) - keep :]
        return {
            "segments": [_segment(segment) for segment in self.segments],
            "device_traces": [events],
            "allocator_settings": {"expandable_segments": False},
            "external_annotations": [],
        }

    def _fitting(self, size: int) -> tuple[Segment, Block] | None:
        for segment in self.segments:
            for block in segment.blocks:
                if block.state == "inactive" and block.size >= size:
                    return segment, block
        return None

    def _new_segment(self, size: int) -> tuple[Segment, Block]:
        total = max(self.segment_bytes, size)
        address = sum(segment.size for segment in self.segments) + MIB * (len(self.segments) + 1)
        block = Block(address, total)
        self.segments.append(Segment(address, total, [block]))
        self._record("segment_alloc", address, total)
        return self.segments[-1], block

    def _record(
        self, action: str, address: int, size: int, frames: list[dict[str, Any]] | None = None
    ) -> None:
        self.time_us += 1
        self.events.append(
            {
                "action": action,
                "addr": address,
                "size": size,
                "stream": 0,
                "time_us": self.time_us,
                "frames": frames or [],
            }
        )


def _join(segment: Segment) -> None:
    joined: list[Block] = []
    for block in segment.blocks:
        if joined and joined[-1].state == block.state == "inactive":
            joined[-1].size += block.size
        else:
            joined.append(block)
    segment.blocks = joined


def _segment(segment: Segment) -> dict[str, Any]:
    return {
        "device": 0,
        "address": segment.address,
        "total_size": segment.size,
        "stream": 0,
        "segment_type": "large",
        "is_expandable": False,
        "frames": [],
        "blocks": [
            {
                "address": block.address,
                "size": block.size,
                "requested_size": block.size,
                "state": block.state,
                "frames": block.frames,
            }
            for block in segment.blocks
        ],
    }
