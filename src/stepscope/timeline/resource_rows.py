"""The rows of a level: the threads and streams that its operations run on, and which to show."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from stepscope.arrays import Ids
from stepscope.timeline.event_index import Index
from stepscope.timeline.operation_costs import Costs


@dataclass(frozen=True)
class Resource:
    """A thread, a stream, or a rank.

    Attributes:
        id: number of the track, or of the rank.
        kind: `cpu`, `device` or `communication`, as in the table of tracks; `rank` for steps.
        name: as in the table of tracks.
        rank: of the process that it belongs to.
        busy_ns: time in which the level's operations run on it.
        shown: whether the level lists it.
    """

    id: int
    kind: str
    name: str
    rank: int
    busy_ns: int
    shown: bool


def find_resources(index: Index, tracks: Ids, costs: Costs, every: bool) -> list[Resource]:
    """The threads and streams of some operations; of each kind the longest is shown, or all.

    The longest thread is the one whose operators and calls take longest: one that waits for it is
    inside a frame all the while.

    Args:
        index: of the trace.
        tracks: the thread of each operation, shape (operations,).
        costs: of the operations.
        every: show all.

    Source: HOTLINE appendix C.2 (Hide) and C.5 (Display Only Longest).
    """
    on_cpu = np.flatnonzero(costs.start_ns >= 0)
    found = [
        *_totals(index, tracks[on_cpu], costs.work_ns[on_cpu], costs.cpu_ns[on_cpu]),
        *_totals(index, costs.parts.track, costs.parts.busy_ns, costs.parts.busy_ns),
    ]
    longest = {kind: max(one for one in found if one[0] == kind) for kind in {k for k, *_ in found}}
    table = index.trace["tracks"]
    return [
        Resource(
            -negative,
            kind,
            table.text("name")[-negative] or "",
            int(table["rank"][-negative]),
            busy,
            every or longest[kind] == (kind, work, busy, negative),
        )
        for kind, work, busy, negative in sorted(found, key=lambda one: -one[3])
    ]


def _totals(index: Index, tracks: Ids, work: Ids, busy: Ids) -> Iterable[tuple[str, int, int, int]]:
    """(kind, work, busy, -track) of each track; of equals the first is the longest."""
    kinds = index.trace["tracks"].text("kind")
    for track in np.unique(tracks).tolist():
        on_track = tracks == track
        on_device = index.trace["tracks"]["device"][track] >= 0
        kind = (kinds[track] or "") if on_device else "cpu"
        yield kind, int(work[on_track].sum()), int(busy[on_track].sum()), -track


def ranks_of_steps(ranks: Ids, costs: Costs, every: bool) -> list[Resource]:
    """The ranks of a trace; the one whose steps take longest is shown, or all."""
    total = {int(rank): int(costs.runtime_ns[ranks == rank].sum()) for rank in np.unique(ranks)}
    longest = max(total, key=lambda rank: total[rank], default=0)
    return [
        Resource(rank, "rank", f"rank {rank}", rank, busy, every or rank == longest)
        for rank, busy in total.items()
    ]
