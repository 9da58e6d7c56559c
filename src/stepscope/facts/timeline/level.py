"""One level of the timeline: what is inside an operation, and the rows that show it."""

from dataclasses import dataclass

import msgspec
import numpy as np

from stepscope.base.arrays import Ids, Mask, Times
from stepscope.facts.timeline.event_index import Index
from stepscope.facts.timeline.operation import Operation
from stepscope.facts.timeline.operation_costs import Costs
from stepscope.trace.row_order import begins_run
from stepscope.trace.sets import distinct_rows, mask_of

_AS_BUSY = 0.9  # of the busiest device's time: as busy, give or take


@dataclass(frozen=True, eq=False)
class Level:
    """The operations inside one operation, by time on the CPU."""

    path: tuple[str, ...]  # ids from a step to the operation that is opened; empty for the trace
    name: str  # of the operation that is opened
    operations: list[Operation]  # those inside it
    costs: Costs  # of each of them
    resources: "list[ResourceRow]"  # the threads and streams they run on, the hidden ones too
    forward: Ids  # the forward event of the first backward one in each, else -1, (operations,)
    backward: Ids  # the first backward event of anything in each, else -1, (operations,)
    launch: Ids  # the call that started each piece of device work, else -1, (operations,)
    through: tuple[str, ...]  # operations opened on the way, as each was alone in its parent
    passed: int  # raw events that are the opened ones themselves and lie in none of the operations
    hidden: int  # raw events of operations on threads that are not shown
    start_ns: int  # start of its span on the CPU
    # end of its span with the device side `shift_ns` earlier, so that a device that lags the CPU
    # throughout makes no level longer
    end_ns: int
    shift_ns: int  # how far the device lags the CPU where the level's device work begins

    def __len__(self) -> int:
        return len(self.operations)

    @property
    def paths(self) -> list[str]:
        """The path of each operation."""
        above = "".join(f"{part}/" for part in self.path)
        return [above + one.id for one in self.operations]

    @property
    def hides(self) -> bool:
        """Whether there are threads or streams that it does not list."""
        return not all(resource.shown for resource in self.resources)

    @property
    def reach_ns(self) -> int:
        """When its work ends on either side, as recorded."""
        return max(self.end_ns, int(self.costs.parts.end_ns.max(initial=0)))

    def find(self, id: str) -> int | None:
        """Number of the operation with an id, None where the level lists none."""
        return next((i for i, one in enumerate(self.operations) if one.id == id), None)


@dataclass(frozen=True, eq=False)
class Opening:
    """The level inside an operation: what it shows by default, and with all threads and streams."""

    shown: Level
    every: Level
    cost_ns: float  # of the operation, at most that of any around it


def alignments(costs: Costs, level: Ids, start_ns: Times) -> Times:
    """How far the device lags the CPU where the device work of each level begins, ns, at least 0.

    Operations have their level, ascending. A level in which none has a CPU side begins where the
    operation that it opens does (`start_ns`).

    Source: HOTLINE appendix C.2 (Align Timelines).
    """
    works = costs.device_start_ns >= 0
    earliest = start_ns + 2**62
    np.minimum.at(earliest, level[works], costs.device_start_ns[works])
    lag = np.where(earliest < start_ns + 2**62, earliest - start_ns, 0)
    both = np.flatnonzero(works & (costs.start_ns >= 0))
    order = both[np.lexsort((costs.start_ns[both], level[both]))]
    of, first = np.unique(level[order], return_index=True)
    lag[of] = (costs.device_start_ns - costs.start_ns)[order[first]]
    return np.maximum(lag, 0)


def span_ends(costs: Costs, level: Ids, shift_ns: Times, start_ns: Times, end_ns: Times) -> Times:
    """End of each level: of its CPU side, or of its device side without its lag if that is later."""
    device = np.zeros(len(start_ns), np.int64)
    np.maximum.at(device, level, costs.device_end_ns)
    return np.maximum(np.maximum(start_ns, end_ns), device - shift_ns)


class ResourceRow(msgspec.Struct, frozen=True):
    """A thread, a stream, or (for steps) a rank."""

    id: int  # number of the track or of the rank
    kind: str  # `cpu`, `device`, `communication`, or `rank` for steps
    name: str  # as recorded
    device: int | None  # number of its device, null for a thread or a rank
    rank: int  # of the process it belongs to
    busy_ns: int  # time in which the level's operations run on it
    shown: bool  # whether the level lists it; offer `every=1` where one is not


@dataclass(frozen=True, eq=False)
class Resources:
    """The threads and streams of several levels: a row for each, by level and track."""

    index: Index  # of the trace
    level: Ids  # which level, ascending, shape (resources,)
    track: Ids  # which thread or stream, shape (resources,)
    busy_ns: Times  # time in which the level's operations run on it, shape (resources,)
    shown: Mask  # whether the level lists it, shape (resources,)

    def lists(self, level: Ids, track: Ids) -> Mask:
        """Whether each of these levels lists this track, shape (n,)."""
        tracks = len(self.index.trace["tracks"])
        listed = (self.level * tracks + self.track)[self.shown]
        return np.isin(level * tracks + track, listed)

    def split(self, levels: int) -> list[list[ResourceRow]]:
        """The rows of each level."""
        table, kinds = self.index.trace["tracks"], kinds_of_tracks(self.index)
        names, ranks = table.text("name"), table["rank"].tolist()
        devices = table["device"].tolist()
        found: list[list[ResourceRow]] = [[] for _ in range(levels)]
        columns = (self.level, self.track, self.busy_ns, self.shown)
        for level, track, busy, shown in zip(*(one.tolist() for one in columns), strict=True):
            device = devices[track] if devices[track] >= 0 else None
            kind, name, rank = kinds[track], names[track] or "", ranks[track]
            found[level].append(ResourceRow(track, kind, name, device, rank, busy, shown))
        return found


def find_resources(index: Index, level: Ids, track: Ids, costs: Costs, every: bool) -> Resources:
    """The threads and streams of some operations; of each kind the longest is shown, or all.

    The longest thread is the one whose operators and calls take longest: one that waits for it is
    inside a frame all the while. Of equals it is the first. Devices that share a step's work are
    busy for about as long as each other: of these it is the first device, the same in each step.

    Source: HOTLINE appendix C.2 (Hide) and C.5 (Display Only Longest).
    """
    on_cpu, parts = costs.start_ns >= 0, costs.parts
    threads = _totals_by_track(
        index, level[on_cpu], track[on_cpu], costs.work_ns[on_cpu], costs.cpu_ns[on_cpu]
    )
    streams = _totals_by_track(index, level[parts.operation], parts.track, parts.busy_ns, parts.busy_ns)
    both = [np.concatenate(pair) for pair in zip(threads, streams, strict=True)]
    order = np.lexsort((both[1], both[0]))
    of_level, tracks, work, busy = (column[order] for column in both)
    shown = np.ones(len(order), np.bool_) if every else _longest(index, of_level, tracks, work, busy)
    return Resources(index, of_level, tracks, busy, shown)


def _totals_by_track(
    index: Index, level: Ids, track: Ids, work: Times, busy: Times
) -> tuple[Ids, Ids, Times, Times]:
    tracks = len(index.trace["tracks"])
    pairs, of = np.unique(level * tracks + track, return_inverse=True)
    sums = [np.bincount(of, time, len(pairs)).astype(np.int64) for time in (work, busy)]
    return pairs // tracks, pairs % tracks, sums[0], sums[1]


def _longest(index: Index, level: Ids, track: Ids, work: Times, busy: Times) -> Mask:
    _, kind = np.unique(kinds_of_tracks(index), return_inverse=True)
    kind = kind[track]
    first = _first_busy_device(index, level, track, kind, work)
    order = np.lexsort((track, -busy, -work, ~first, kind, level))
    return mask_of(order[begins_run(level[order], kind[order])], len(order))


def _first_busy_device(index: Index, level: Ids, track: Ids, kind: Ids, work: Times) -> Mask:
    """Which are on the first device of their level and kind that is about as busy as any."""
    groups, group = distinct_rows(level, kind)
    device = index.trace["tracks"]["device"][track].astype(np.int64)
    most = np.zeros(len(groups), np.int64)
    np.maximum.at(most, group, work)
    busy = work >= _AS_BUSY * most[group]
    first = np.full(len(most), np.iinfo(np.int64).max)
    np.minimum.at(first, group[busy], device[busy])
    return device == first[group]


def kinds_of_tracks(index: Index) -> list[str]:
    """The kind of each track as levels name it, a thread's being `cpu`."""
    table = index.trace["tracks"]
    on_device = (table["device"] >= 0).tolist()
    return [(kind or "") if on else "cpu" for kind, on in zip(table.text("kind"), on_device, strict=True)]


def ranks_of_steps(ranks: Ids, costs: Costs, every: bool, first: int | None = None) -> list[ResourceRow]:
    """The ranks of a trace; the first is shown, by default that whose steps take longest, or all."""
    total = {int(rank): int(costs.runtime_ns[ranks == rank].sum()) for rank in np.unique(ranks)}
    longest = first if first in total else max(total, key=lambda rank: total[rank], default=0)
    return [
        ResourceRow(rank, "rank", f"rank {rank}", None, rank, busy, every or rank == longest)
        for rank, busy in total.items()
    ]
