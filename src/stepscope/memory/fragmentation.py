"""Memory that is reserved but cannot be used: free blocks in segments that something pins."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.trace.trace import Trace

_LARGEST = 5


@dataclass(frozen=True)
class PinnedSegment:
    """A segment that is kept by few blocks.

    Attributes:
        address: of the segment.
        bytes: its size.
        free_bytes: what of it is free and cannot be returned to the device.
        stacks: stacks.id of the blocks in use, -1 where unknown, the largest first.
    """

    address: int
    bytes: int
    free_bytes: int
    stacks: tuple[int, ...]


@dataclass(frozen=True)
class Fragmentation:
    """The state of one device's segments at the snapshot, in bytes.

    Attributes:
        reserved: all segments.
        in_use: blocks in use.
        cached: segments of which no block is in use; they can be returned at any time.
        pinned: free blocks in segments that also hold blocks in use.
        largest_free: the largest free block: the most that fits without a new segment.
        segments: those with most pinned memory.
    """

    reserved: int
    in_use: int
    cached: int
    pinned: int
    largest_free: int
    segments: tuple[PinnedSegment, ...]


def find_fragmentation(trace: Trace, device: int) -> Fragmentation:
    """How a device's reserved memory is used at the snapshot."""
    segments, blocks = trace["segments"], trace["blocks"]
    mine = segments["device"] == device
    of = blocks["segment"]
    used = blocks.text("state").where(lambda state: state.startswith("active"))
    here = mine[of]
    size = blocks["bytes"]
    used_bytes = np.bincount(of, np.where(used, size, 0), len(segments)).astype(np.int64)
    free_bytes = np.bincount(of, np.where(used, 0, size), len(segments)).astype(np.int64)
    pinned = np.where(mine & (used_bytes > 0), free_bytes, 0)
    return Fragmentation(
        reserved=int(segments["bytes"][mine].sum()),
        in_use=int(used_bytes[mine].sum()),
        cached=int(segments["bytes"][mine & (used_bytes == 0)].sum()),
        pinned=int(pinned.sum()),
        largest_free=int(size[here & ~used].max(initial=0)),
        segments=_worst(trace, pinned.astype(np.int64)),
    )


def _worst(trace: Trace, pinned: np.ndarray) -> tuple[PinnedSegment, ...]:
    segments, blocks = trace["segments"], trace["blocks"]
    used = blocks.text("state").where(lambda state: state.startswith("active"))
    worst = [row for row in np.argsort(-pinned, kind="stable")[:_LARGEST] if pinned[row]]
    found = []
    for row in worst:
        holders = np.flatnonzero(used & (blocks["segment"] == row))
        order = holders[np.argsort(-blocks["bytes"][holders], kind="stable")]
        found.append(
            PinnedSegment(
                address=int(segments["address"][row]),
                bytes=int(segments["bytes"][row]),
                free_bytes=int(pinned[row]),
                stacks=tuple(blocks["stack"][order].tolist()),
            )
        )
    return tuple(found)
