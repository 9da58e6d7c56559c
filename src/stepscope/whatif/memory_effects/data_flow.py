"""Which operator reads and makes which allocation, in order of time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stepscope.arrays import Ids
from stepscope.memory.recorded_allocations import AllocationRecord


@dataclass(frozen=True)
class FlowOperation:
    """One outermost operator.

    Attributes:
        root: events.id.
        reads: numbers of the recorded allocations that it uses and that were there before.
        makes: numbers of the recorded allocations that it makes.
    """

    root: int
    reads: Ids
    makes: Ids


def operations(recording: AllocationRecord) -> Iterator[FlowOperation]:
    """Every outermost operator, in order of time."""
    uses = recording.uses
    root = np.append(recording.attribution.root, -1)[uses.event].astype(np.int64)
    before = recording.lifetimes.start[uses.allocation] < recording.starts[root]
    read = np.flatnonzero((root >= 0) & before)
    made = np.flatnonzero(recording.root >= 0)
    roots = np.unique(np.concatenate([root[read], recording.root[made]]))
    roots = roots[np.argsort(recording.starts[roots], kind="stable")]
    reads = _grouped(roots, root[read], uses.allocation[read])
    makes = _grouped(roots, recording.root[made], made)
    for number, one in enumerate(roots.tolist()):
        yield FlowOperation(one, reads[number], makes[number])


def _grouped(keys: Ids, key: Ids, values: Ids) -> list[Ids]:
    """The distinct values of each key, in the order of `keys`."""
    pairs = np.unique(np.stack([key, values]), axis=1)
    rank = np.argsort(keys, kind="stable")
    low = np.searchsorted(pairs[0], keys[rank], side="left")
    high = np.searchsorted(pairs[0], keys[rank], side="right")
    result: list[Ids] = [values[:0]] * len(keys)
    for place, first, last in zip(rank.tolist(), low.tolist(), high.tolist(), strict=True):
        result[place] = pairs[1][first:last]
    return result
