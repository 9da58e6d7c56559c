"""Feature maps that are elsewhere, or encoded, between forward and backward."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stepscope.arrays import Floats
from stepscope.errors import ChangeError
from stepscope.memory.recorded_allocations import AllocationRecord
from stepscope.memory.recorded_memory import RecordedMemory

_MAKERS = {"relu": "relu", "pool": "pool", "conv": "convolution"}
_BITS, _INDEX = 1 / 32, 1.25  # one bit for 32; a byte of index for each value that is kept


def offloaded(memory: RecordedMemory) -> RecordedMemory:
    """The memory if inputs of convolutions are in host memory between forward and backward.

    Raises:
        ChangeError: if no convolution's input is kept for backward.

    Source: Rhu et al., "vDNN", MICRO 2016.
    """
    maps = _kept_maps(memory.recording)
    return _between(memory, {one: 0.0 for one, (_, reader) in maps.items()
                             if reader == "convolution"}, "vdnn")  # fmt: skip


def encoded(memory: RecordedMemory, lossy: bool = False, sparsity: float = 0.5) -> RecordedMemory:
    """The memory if feature maps are encoded between forward and backward.

    Raises:
        ChangeError: if there is no such map.

    Source: Jain et al., "Gist", ISCA 2018, section 4.
    """
    share: dict[int, float] = {}
    for one, (maker, reader) in _kept_maps(memory.recording).items():
        if (maker, reader) == ("relu", "pool"):
            share[one] = _BITS
        elif reader == "convolution" and maker in ("relu", "pool"):
            share[one] = min(1.0, _INDEX * (1 - sparsity))
        elif reader == "convolution" and lossy:
            share[one] = 0.5
    return _between(memory, share, "gist")


def _kept_maps(recording: AllocationRecord) -> dict[int, tuple[str, str]]:
    """Allocations kept for backward, with the kinds of operator that made and that keep them."""
    uses, names = recording.uses, recording.trace.events.text("name")
    rows = np.flatnonzero(uses.saver >= 0)
    found: dict[int, tuple[str, str]] = {}
    for one, saver in zip(uses.allocation[rows].tolist(), uses.saver[rows].tolist(), strict=True):
        maker = int(recording.root[one])
        reader = _class(names[int(recording.attribution.root[saver])])
        if maker >= 0 and maker != recording.attribution.root[saver] and reader:
            found[one] = (_class(names[maker]), reader)
    return found


def _class(name: str | None) -> str:
    return next((kind for part, kind in _MAKERS.items() if part in (name or "")), "")


def _between(memory: RecordedMemory, share: Mapping[int, float], change: str) -> RecordedMemory:
    """Each map has a share of its size from its last read in forward to its first in backward."""
    if not share:
        raise ChangeError(f"{change}: no feature map of this kind is kept for backward")
    chosen = np.array([*share], np.int64)
    life = memory.lifetimes
    factor = np.ones(len(memory.recording) + 1)
    factor[chosen] = [*share.values()]
    last, first = memory.recording.last_read, _first_read_in_backward(memory.recording)
    rows = np.flatnonzero((factor < 1)[life.recorded] & (first > last)[life.recorded])
    whole = life.take(rows)
    low, high = last[whole.recorded], first[whole.recorded]
    small = np.rint(whole.bytes * factor[whole.recorded]).astype(np.int64)
    end = life.end.copy()
    end[rows] = np.minimum(whole.end, low)
    middle = whole.changed(bytes=small, start=low, end=np.minimum(whole.end, high))
    return memory.with_lifetimes(
        life.changed(end=end).plus(middle).plus(whole.changed(start=np.minimum(high, whole.end)))
    )


def _first_read_in_backward(recording: AllocationRecord) -> Floats:
    """The beginning of the first backward operator that uses each allocation; inf without."""
    uses = recording.uses
    rows = np.flatnonzero(uses.backward)
    first = np.full(len(recording) + 1, np.inf)
    np.minimum.at(first, uses.allocation[rows], recording.starts[uses.event[rows]])
    return first
