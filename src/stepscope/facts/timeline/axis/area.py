"""Statistics of a part of the axis: what is busy, what is idle and why, what runs."""

from dataclasses import dataclass

import msgspec
import numpy as np

from stepscope.base.arrays import Ids, Times
from stepscope.facts.annotate.links.launches import device_work
from stepscope.facts.timeline.axis.time_axis import AxisTrack, TimeAxis
from stepscope.facts.timeline.event_index import Index
from stepscope.trace.intervals import Intervals
from stepscope.trace.schema import IDLE_CAUSES


@dataclass(frozen=True)
class AreaShare:
    """Work of one kind within an area."""

    code: int  # what it is of: a code of a name, stage or kind, a module or a track; -1 for none
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
    names: list[AreaShare]  # `work` by name, the longest first
    modules: list[AreaShare]  # `work` by module, the longest first
    stages: list[AreaShare]  # `work` by stage, the longest first
    kinds: list[AreaShare]  # `work` by kind of device work, the longest first
    tracks: list[AreaShare]  # `work` by stream or thread, the longest first


def area_of(axis: TimeAxis, start: int, end: int, tracks: list[AxisTrack]) -> Area:
    """The statistics of [start, end) on some tracks.

    Args:
        start, end: ns since the trace's start.
        tracks: of the axis; those of stages and idle time say nothing themselves.
    """
    index = axis.index
    recorded = [track for track in tracks if track.kind not in ("stages", "idle")]
    parts = [_touching(index, track, start, end) for track in recorded]
    rows = np.sort(np.concatenate([np.zeros(0, np.int64), *parts]))
    on_device = device_work(index.trace)[rows]
    threads = {
        track.id: _busy(index, track, start, end) for track in tracks if track.kind == "cpu" and track.busy_ns
    }
    work = rows[on_device] if on_device.any() else rows[~index.surrounds[rows]]
    inside = _time_inside(index, work, start, end, bool(on_device.any()))
    columns = [index.events[name] for name in ("module", "stage", "kind", "track")]
    devices = sorted({(track.rank, track.device) for track in tracks if track.device >= 0})
    return Area(
        [_idle(axis, start, end, rank, device) for rank, device in devices],
        threads,
        work,
        inside,
        bool(on_device.any()),
        *(
            _grouped(index, column[work].astype(np.int64), work, inside)
            for column in (index.events.text("name").codes, *columns)
        ),
    )


def _touching(index: Index, track: AxisTrack, start: int, end: int) -> Ids:
    rows = track.rows[: np.searchsorted(index.start[track.rows], end)]
    return rows[index.end[rows] > start]


def _time_inside(index: Index, rows: Ids, start: int, end: int, on_device: bool) -> Times:
    """Time of each within the area; of CPU events the part that no inner event has."""
    inside = np.minimum(index.end[rows], end) - np.maximum(index.start[rows], start)
    if on_device:
        return inside
    place = np.full(len(index.start), -1, np.int64)
    place[rows] = np.arange(len(rows))
    around = place[index.parent[rows]]
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
    rows &= (part > 0) & (idle["cause"] != IDLE_CAUSES.index("communication"))
    causes = np.bincount(idle["cause"][rows], part[rows], len(IDLE_CAUSES)).astype(np.int64)
    found = {IDLE_CAUSES[code]: int(causes[code]) for code in np.flatnonzero(causes).tolist()}
    rest = end - start - computing - copying - communicating - sum(found.values())
    if rest > 0:
        found["outside_steps"] = rest
    return DeviceShare(rank, device, computing, copying, communicating, found)


def _grouped(index: Index, codes: Ids, work: Ids, inside: Times) -> list[AreaShare]:
    if not len(work):
        return []
    values, group = np.unique(codes, return_inverse=True)
    count = np.bincount(group)
    time = np.bincount(group, inside).astype(np.int64)
    by_length = np.lexsort((-index.duration[work], group))
    longest = work[by_length[np.searchsorted(group[by_length], np.arange(len(values)))]]
    order = np.argsort(-time, kind="stable")
    return [AreaShare(int(values[i]), int(count[i]), int(time[i]), int(longest[i])) for i in order.tolist()]
