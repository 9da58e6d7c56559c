"""The tracks of a trace on one axis: threads, streams, stages of each rank, idle of each device.

A tile is a part of the axis: at zoom 0 all of it, at each further zoom half of the one before. An
exact tile holds each of its slices, so nothing finer needs to be asked for. Any other holds the
slices that are as long as a bin, and how much of each bin all slices cover, these included.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from threading import RLock

import msgspec
import numpy as np

from stepscope.base.arrays import Codes8, Floats, Ids, IntArray, Rows, Times
from stepscope.facts.annotate.device.idle import busy_times, copy_times
from stepscope.facts.annotate.links.launches import device_work
from stepscope.facts.timeline.axis.counters import BINS, Counter, counters_of
from stepscope.facts.timeline.event_index import Index
from stepscope.trace.intervals import Intervals
from stepscope.trace.nesting import depths
from stepscope.trace.row_order import inverse
from stepscope.trace.schema import IDLE_CAUSES, STAGES
from stepscope.trace.sets import distinct
from stepscope.trace.table import Table

EXACT_SLICES = 3000  # of a tile: up to about three for each of its bins all are sent
_FEW = 50_000  # slices that are faster looked at than searched by length
_ALL = slice(None)
KINDS = ("stages", "cpu", "device", "communication", "idle")


@dataclass(frozen=True)
class SortedSlices:
    """What a tile shows of a track; times are ns since the trace's start."""

    exact: bool  # whether `row` holds all slices of the tile
    row: Ids  # slices shown one by one, rows of the track's columns, shape (n,)
    depth: Ids  # nesting depth of each, shape (n,)
    bin_depth: Ids  # nesting depth of each bin that any slice covers, also one of `row`, shape (m,)
    bin: Ids  # its number, 0 to `BINS` - 1, shape (m,)
    bin_row: Ids  # a slice in it, whose color the bin takes, shape (m,)
    cover: Floats  # how much of it is covered, 0 to 1, shape (m,)


class TrackSlices:
    """The slices of one track, found by time and by length.

    Args:
        start_ns: sorted ascending, int64, shape (slices,).
        duration_ns: int64, shape (slices,).
        depth: nesting depth, shape (slices,); slices of one depth rarely overlap.

    Attributes:
        depths: number of nesting depths.
    """

    def __init__(self, start_ns: Times, duration_ns: Times, depth: Codes8 | Ids) -> None:
        order = np.argsort(depth, kind="stable")
        self.depths = int(depth.max(initial=0)) + 1
        self._depths = [
            _Depth(order[first:end], start_ns[order[first:end]], duration_ns[order[first:end]])
            for first, end in pairwise(np.searchsorted(depth[order], np.arange(self.depths + 1)).tolist())
        ]

    def tile(self, start: int, end: int) -> SortedSlices:
        """What the tile [start, end) shows."""
        exact = sum(depth.count(start, end) for depth in self._depths) <= EXACT_SLICES
        shown = [(depth.within if exact else depth.long)(start, end) for depth in self._depths]
        none = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
        binned = [none if exact else depth.bins(start, end) for depth in self._depths]
        bins, rows, cover = (np.concatenate(part) for part in zip(*binned, strict=True))
        return SortedSlices(
            exact,
            np.concatenate(shown),
            np.repeat(np.arange(self.depths), [len(part) for part in shown]),
            np.repeat(np.arange(self.depths), [len(part) for part, _, _ in binned]),
            bins,
            rows,
            cover,
        )


class _Depth:
    """The slices of one nesting depth."""

    def __init__(self, rows: Rows, start: Times, duration: Times) -> None:
        self._rows, self._start, self._duration = rows, start, duration

    @cached_property
    def _reach(self) -> Times:
        """The latest end so far: ascending, even if slices overlap."""
        return np.maximum.accumulate(self._start + self._duration)

    @cached_property
    def _busy(self) -> Intervals:
        return Intervals(self._start, self._start + self._duration)

    @cached_property
    def _longest_first(self) -> tuple[Rows, Times]:
        order = np.argsort(-self._duration, kind="stable")
        return order, -self._duration[order]

    def _part(self, start: int, end: int) -> tuple[int, int]:
        first = int(np.searchsorted(self._reach, start, side="right"))
        return first, max(int(np.searchsorted(self._start, end)), first)

    def count(self, start: int, end: int) -> int:
        first, last = self._part(start, end)
        return last - first

    def within(self, start: int, end: int) -> Ids:
        """All slices that touch [start, end)."""
        first, last = self._part(start, end)
        touches = self._start[first:last] + np.maximum(self._duration[first:last], 1) > start
        return self._rows[first:last][touches]

    def long(self, start: int, end: int) -> Ids:
        """The slices that touch [start, end) and are as long as a bin."""
        least = (end - start) // BINS
        first, last = self._part(start, end)
        if last - first <= _FEW:
            candidates = np.arange(first, last)
        else:
            order, lengths = self._longest_first
            longer = order[: np.searchsorted(lengths, -least, side="right")]
            candidates = np.sort(longer[(longer >= first) & (longer < last)])
        begin, length = self._start[candidates], self._duration[candidates]
        return self._rows[candidates[(length >= least) & (begin + length > start)]]

    def bins(self, start: int, end: int) -> tuple[Ids, Ids, Floats]:
        """Number, a slice and the covered share of each bin that any slice covers."""
        edges = np.linspace(start, end, BINS + 1).astype(np.int64)
        covered = np.diff(self._busy.before(edges))
        found = np.flatnonzero(covered > 0)
        of = np.searchsorted(self._start, edges[found + 1]) - 1
        share = covered[found] / np.maximum(edges[found + 1] - edges[found], 1)
        return found, self._rows[of], share


@dataclass(frozen=True)
class AxisTrack:
    """One track of the axis."""

    # `t` and tracks.id, `s` and the rank for its stages, `i` and rank and device for the idle time of a
    # device
    id: str
    kind: str  # one of `KINDS`
    name: str  # as recorded
    rank: int  # of the process
    device: int  # number of the device, -1 for a thread
    rows: IntArray  # rows of `table`, by start
    depth: Ids  # nesting depth of each, shape (rows,)
    busy_ns: int  # time that it is busy, in more than frames and annotations


@dataclass(frozen=True)
class DeviceTime:
    """When a device is busy: three things that it does one at a time."""

    computing: Intervals  # kernels run
    copying: Intervals  # only copies and fills of memory run
    communicating: Intervals  # only communication runs

    @property
    def busy(self) -> Intervals:
        """When it does any of them."""
        return self.computing.union(self.copying).union(self.communicating)


@dataclass(frozen=True)
class Labels:
    """What slices of a track say; codes index into `names`."""

    event: Ids  # events.id, -1 for stages and idle time, shape (n,)
    stage: Codes8  # index into the stages, -1 for none, shape (n,)
    name: list[str] | None  # name of stages and idle time, None for events


class TimeAxis:
    """All tracks of an annotated trace; times are ns since the trace's start.

    Attributes:
        end_ns: end of the last slice.
        tile_ns: length of the tile at zoom 0; `BINS` times a power of two.
        tracks: by id, rank by rank, those of the CPU first.
    """

    def __init__(self, index: Index) -> None:
        self.index = index
        self.end_ns = max(int(index.end.max(initial=0)), 1)
        self.tile_ns = BINS << max((self.end_ns - 1) // BINS, 0).bit_length()
        stages = self.index.trace["stages"]
        tracks = [_track_of_table(stages, "stages", rank) for rank in distinct(stages["rank"]).tolist()]
        tracks += [*self._recorded_tracks(), *self._idle_tracks()]
        # Rank by rank: stages, threads with the busiest first, then device by device.
        tracks.sort(key=lambda one: (one.rank, one.device, KINDS.index(one.kind), -one.busy_ns))
        self.tracks = {track.id: track for track in tracks}
        self._slices: dict[str, TrackSlices] = {}
        self._device_time: dict[tuple[int, int], DeviceTime] = {}
        self._lock = RLock()

    @property
    def deepest(self) -> int:
        """The zoom at which a bin is a nanosecond."""
        return (self.tile_ns // BINS).bit_length() - 1

    def tile(self, track: AxisTrack, zoom: int, number: int) -> SortedSlices:
        """What a tile shows of a track: at a zoom of 0 to `deepest`, number 0 to 2**zoom - 1."""
        length = self.tile_ns >> zoom
        return self._slices_of(track).tile(number * length, (number + 1) * length)

    @cached_property
    def counters(self) -> dict[str, Counter]:
        """The counters of the trace by id: `c` and a number from 0 on."""
        found = counters_of(self.index.trace, lambda rank, device: self.device_time(rank, device).busy)
        return {f"c{number}": counter for number, counter in enumerate(found)}

    def labels(self, track: AxisTrack, rows: Ids) -> Labels:
        """What some slices of a track say; `rows` are of `track.rows`, shape (n,)."""
        at = track.rows[rows]
        if track.kind == "stages":
            stage = self.index.trace["stages"]["stage"][at]
            return Labels(np.full(len(at), -1), stage, [STAGES[code] for code in stage.tolist()])
        none = np.full(len(at), -1, np.int8)
        if track.kind == "idle":
            causes = self.index.trace["idle"]["cause"][at].tolist()
            return Labels(np.full(len(at), -1), none, [IDLE_CAUSES[code] for code in causes])
        return Labels(at.astype(np.int64), self.index.events["stage"][at], None)

    def spans(self, track: AxisTrack, rows: Ids | slice = _ALL) -> tuple[Times, Times]:
        """Starts and durations of slices of a track; `rows` are of `track.rows`, shapes (n,)."""
        at = track.rows[rows]
        if track.kind in ("stages", "idle"):
            table = self.index.trace[track.kind]
            start = table["start_ns"][at]
            return start, table["end_ns"][at] - start
        return self.index.start[at], self.index.duration[at]

    def device_time(self, rank: int, device: int) -> DeviceTime:
        """When a device is busy, and with what."""
        with self._lock:
            if (rank, device) not in self._device_time:
                self._device_time[rank, device] = _device_time(self.index, rank, device)
            return self._device_time[rank, device]

    def _slices_of(self, track: AxisTrack) -> TrackSlices:
        with self._lock:
            if track.id not in self._slices:
                self._slices[track.id] = TrackSlices(*self.spans(track), track.depth)
            return self._slices[track.id]

    def _recorded_tracks(self) -> list[AxisTrack]:
        index, tracks = self.index, self.index.trace["tracks"]
        depth = depths(index.events["parent"]).astype(np.int64)
        bounds = np.searchsorted(index.track[index.order], np.arange(len(tracks) + 1))
        found = []
        for number in np.flatnonzero(np.diff(bounds)).tolist():
            # In pre-order; ids are in order of start.
            rows = np.sort(index.order[bounds[number] : bounds[number + 1]])
            works = rows[~index.surrounds[rows]]
            busy = Intervals(index.start[works], index.end[works]).total()
            kind = tracks.text("kind")[number] or "cpu"
            name, rank = tracks.text("name")[number] or "", int(tracks["rank"][number])
            device = int(tracks["device"][number])
            found.append(AxisTrack(f"t{number}", kind, name, rank, device, rows, depth[rows], busy))
        return found

    def _idle_tracks(self) -> list[AxisTrack]:
        table = self.index.trace["idle"]
        pairs = sorted(set(zip(table["rank"].tolist(), table["device"].tolist(), strict=True)))
        return [_track_of_table(table, "idle", rank, device) for rank, device in pairs]


def _device_time(index: Index, rank: int, device: int) -> DeviceTime:
    tracks = index.trace["tracks"]
    here = ((tracks["device"] == device) & (tracks["rank"] == rank))[index.track]
    work = np.flatnonzero(device_work(index.trace) & here)
    busy, communicating = busy_times(index.trace, work)
    copying = copy_times(index.trace, work).minus(communicating)
    return DeviceTime(busy.minus(copying), copying, communicating)


def _track_of_table(table: Table, kind: str, rank: int, device: int = -1) -> AxisTrack:
    is_idle = kind == "idle"
    rows = np.flatnonzero((table["rank"] == rank) & (not is_idle or table["device"] == device))
    id = f"i{rank}.{device}" if is_idle else f"s{rank}"
    rows = rows[np.argsort(table["start_ns"][rows], kind="stable")]
    length = int((table["end_ns"] - table["start_ns"])[rows].sum())
    return AxisTrack(id, kind, kind, rank, device, rows, np.zeros(len(rows), np.int64), length)


# -- statistics of a part of the axis: what is busy, what is idle and why, what runs


@dataclass(frozen=True)
class AreaShare:
    """Work of one value of a column within an area."""

    code: int  # the value, of a text its code; -1 for none
    count: int  # slices that touch the area
    ns: int  # their time inside it
    longest: int  # the longest of them, events.id


class DeviceShare(msgspec.Struct, frozen=True):
    """How a device spends an area."""

    rank: int
    device: int
    computing_ns: int  # time that it computes
    copying_ns: int  # time that it only copies or fills memory
    communicating_ns: int  # time that it only communicates
    idle_ns: dict[str, int]  # idle time by cause; `outside_steps` if no step is there


@dataclass(frozen=True)
class Area:
    """What lies in an area."""

    devices: list[DeviceShare]  # how each spends it
    threads: dict[str, int]  # busy time of each thread, by the id of its track
    work: Ids  # device work in it, else operators on the CPU: events.id, shape (n,)
    inside_ns: Times  # time of each of `work` within the area, shape (n,); of an operator its own
    on_device: bool  # whether `work` is that of devices
    groups: list[AreaShare]  # `work` by value of the column, the longest first


def area_of(axis: TimeAxis, start: int, end: int, tracks: list[AxisTrack], column: str = "name") -> Area:
    """The statistics of [start, end), ns since the trace's start, on some tracks of the axis.

    Tracks of stages and idle time say nothing themselves. The work is grouped by a column of the events.
    """
    index = axis.index
    recorded = [track for track in tracks if track.kind not in ("stages", "idle")]
    parts = [_touching(index, track, start, end) for track in recorded]
    rows = np.sort(np.concatenate([np.zeros(0, np.int64), *parts]))
    on_device = device_work(index.trace)[rows]
    threads = {
        track.id: _busy(index, track, start, end) for track in tracks if track.kind == "cpu" and track.busy_ns
    }
    inside = _time_inside(index, rows, start, end, bool(on_device.any()))
    works = on_device if on_device.any() else ~index.surrounds[rows]
    work, inside = rows[works], inside[works]
    devices = sorted({(track.rank, track.device) for track in tracks if track.device >= 0})
    return Area(
        [_idle(axis, start, end, rank, device) for rank, device in devices],
        threads,
        work,
        inside,
        bool(on_device.any()),
        _grouped(index, index.events[column][work].astype(np.int64), work, inside),
    )


def _touching(index: Index, track: AxisTrack, start: int, end: int) -> IntArray:
    rows = track.rows[: np.searchsorted(index.start[track.rows], end)]
    return rows[index.end[rows] > start]


def _time_inside(index: Index, rows: Ids, start: int, end: int, on_device: bool) -> Times:
    """Time of each within the area; of CPU events the part that no inner event has."""
    inside = np.minimum(index.end[rows], end) - np.maximum(index.start[rows], start)
    if on_device:
        return inside
    around = inverse(rows, len(index.start))[index.parent[rows]]
    within = np.flatnonzero((index.parent[rows] >= 0) & (around >= 0))
    inner = np.bincount(around[within], inside[within], len(rows)).astype(np.int64)
    return np.maximum(inside - inner, 0)


def _busy(index: Index, track: AxisTrack, start: int, end: int) -> int:
    """Time that a thread does something itself: in more than frames and annotations."""
    rows = _touching(index, track, start, end)
    rows = rows[~index.surrounds[rows]]
    return Intervals(index.start[rows], index.end[rows]).clip(start, end).total()


def _idle(axis: TimeAxis, start: int, end: int, rank: int, device: int) -> DeviceShare:
    idle = axis.index.trace["idle"]
    spent = axis.device_time(rank, device)
    computing, copying, communicating = (
        part.clip(start, end).total() for part in (spent.computing, spent.copying, spent.communicating)
    )
    rows = (idle["rank"] == rank) & (idle["device"] == device)
    part = np.minimum(idle["end_ns"], end) - np.maximum(idle["start_ns"], start)
    rows &= part > 0
    causes = np.bincount(idle["cause"][rows], part[rows], len(IDLE_CAUSES)).astype(np.int64)
    exposed = IDLE_CAUSES.index("communication")  # of which what the device runs is none of its idle time
    waits = Intervals(*idle.spans(rows & (idle["cause"] == exposed))).minus(spent.communicating)
    causes[exposed] = waits.clip(start, end).total()
    found = {IDLE_CAUSES[code]: int(causes[code]) for code in np.flatnonzero(causes).tolist()}
    rest = end - start - computing - copying - communicating - sum(found.values())
    found |= {"outside_steps": rest} if rest > 0 else {}
    return DeviceShare(rank, device, computing, copying, communicating, found)


def _grouped(index: Index, codes: Ids, work: Ids, inside: Times) -> list[AreaShare]:
    values, group = np.unique(codes, return_inverse=True)
    count = np.bincount(group)
    time = np.bincount(group, inside).astype(np.int64)
    by_length = np.lexsort((-index.duration[work], group))
    longest = work[by_length[np.searchsorted(group[by_length], np.arange(len(values)))]]
    order = np.argsort(-time, kind="stable")
    return [AreaShare(int(values[i]), int(count[i]), int(time[i]), int(longest[i])) for i in order.tolist()]
